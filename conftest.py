"""What must be so before tests are collected.

A torchvision that was built for another torch breaks every model of `transformers`, unless it is out of sight. Modules
that need the extra `serve` are not looked through for examples where it is not installed.
"""

import importlib
import sys
from importlib.util import find_spec

try:
    importlib.import_module("torchvision")
except (ImportError, RuntimeError):
    # Before anything asks `transformers` what is there: it remembers the answer.
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # so that importing it fails at once

collect_ignore: list[str] = []
if find_spec("cryptography") is None or find_spec("sqlalchemy") is None:
    collect_ignore.append("src/spotlessnet/proof")
collect_ignore.append("src/spotlessnet/serve/migrations")  # scripts that only Alembic can run
if find_spec("dbos") is None or find_spec("fastapi") is None:
    collect_ignore.append("src/spotlessnet/serve")
