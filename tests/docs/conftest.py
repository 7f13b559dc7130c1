"""The site, built once for all tests that look at it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.docs.blocks import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder with the built pages; processes of one test run share it."""
    for package in ("mkdocs", "latex2mathml"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: the site is not built")
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "sitemap.xml").exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
            assert ended.returncode == 0, ended.stderr
    return folder
