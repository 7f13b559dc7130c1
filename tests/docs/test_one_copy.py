"""Files are linked, not copied: no two tracked files have the same contents."""

import hashlib
import shutil
import subprocess
from collections import defaultdict

import pytest

from tests.docs.blocks import ROOT

SMALL = 1024
"""Bytes up to which a copy costs nobody anything: empty `__init__.py` files, for instance."""

ALLOWED: dict[frozenset[str], str] = {}
"""Groups of equal files that may stay, each with its reason."""


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a clone: nothing is tracked"
)
def test_no_two_tracked_files_are_the_same():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    by_digest = defaultdict(set)
    for name in filter(None, tracked.split("\0")):
        path = ROOT / name
        if path.is_file() and path.stat().st_size > SMALL:
            by_digest[hashlib.sha256(path.read_bytes()).hexdigest()].add(name)
    copies = [sorted(names) for names in by_digest.values() if len(names) > 1 and frozenset(names) not in ALLOWED]
    assert copies == []
