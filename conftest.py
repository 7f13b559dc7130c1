"""A torchvision that was built for another torch breaks every model of `transformers`, unless it is out of sight."""

import importlib
import sys

try:
    importlib.import_module("torchvision")
except (ImportError, RuntimeError):
    # Before anything asks `transformers` what is there: it remembers the answer.
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # so that importing it fails at once
