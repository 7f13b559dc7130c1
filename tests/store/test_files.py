"""Files are whole or absent, whatever fails and whenever the process dies."""

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import time

import pytest

from spotlessnet.core.errors import DataError, IntegrityError, ResourceError
from spotlessnet.core.files import PENDING, Look, sha256, sweep, write_whole

CALLS = ("open", "write", "fsync", "link", "replace", "close")


def test_writes_what_it_was_given_and_tells_the_digest(tmp_path):
    digest = write_whole(tmp_path / "deep" / "a.bin", b"hello")
    assert (tmp_path / "deep" / "a.bin").read_bytes() == b"hello"
    assert digest == sha256(tmp_path / "deep" / "a.bin")


def test_never_overwrites_unless_told(tmp_path):
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(
        DataError, match=r"a exists already, and .* Choose another output, or in Python give `replace=True`\."
    ):
        write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    write_whole(tmp_path / "a", b"new", replace=True)
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_the_nth_call_failing_leaves_the_old_file_or_the_new_one_whole(tmp_path, monkeypatch, replace, failure):
    """Fail the first, second, third … system call until none is left to fail."""
    old, new = b"old" * 1000, b"new" * 1000
    for n in range(1, 60):
        target = tmp_path / f"{failure}-{n}"
        if replace:
            target.write_bytes(old)
        left = [n]
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, _failing(getattr(os, name), left, failure))
            try:
                write_whole(target, new, replace=replace)
            except ResourceError as error:
                assert "nothing half-written was left" in str(error)  # noqa: PT017  the loop ends on success
        content = target.read_bytes() if target.exists() else None
        assert content in ((old, new) if replace else (None, new))
        if left[0] > 0:
            assert content == new
            break
    else:
        pytest.fail("the write never ran to its end")
    sweep(tmp_path)
    assert not list(tmp_path.glob(f"{PENDING}*"))


def _failing(real, left, failure):
    def call(*arguments, **named):
        left[0] -= 1
        if left[0] == 0:
            if real.__name__ == "close":
                real(*arguments, **named)  # a close that fails still releases the handle
            raise OSError(failure, os.strerror(failure))
        return real(*arguments, **named)

    return call


WRITER = """
import sys
from pathlib import Path
from spotlessnet.core.files import write_whole
target, size = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
for i in range(10**6):
    write_whole(target, bytes([i % 256]) * size, replace=True)
"""


@pytest.mark.parametrize("times", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_at_random_times_leaves_a_whole_file(tmp_path, times):
    chance = random.Random(0)
    size = 200_000
    target = tmp_path / "model.safetensors"
    target.write_bytes(b"\0" * size)
    for _ in range(times):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(target), str(size)], stdout=subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        content = target.read_bytes()
        assert len(content) == size
        assert len(set(content)) == 1
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_sweep_leaves_files_of_living_processes(tmp_path):
    (tmp_path / f"{PENDING}{os.getppid()}-abc").write_bytes(b"")
    (tmp_path / f"{PENDING}999999999-abc").write_bytes(b"")
    assert sweep(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"{PENDING}{os.getppid()}-abc"]


@pytest.mark.parametrize(
    ("umask", "shared", "mode"), [(0o022, True, 0o644), (0o077, True, 0o600), (0o000, False, 0o600)]
)
def test_what_a_server_must_read_follows_the_umask_and_what_betrays_rows_does_not(tmp_path, umask, shared, mode):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", b"content", shared=shared)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_disk_that_fails_is_not_told_as_a_file_that_changed(tmp_path, monkeypatch):
    file = tmp_path / "weights"
    file.write_bytes(b"as read")
    look = Look.at(file)
    look.check_unchanged("--weights")

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", fail)
        with pytest.raises(OSError, match="Input/output error"):
            look.check_unchanged("--weights")
    file.unlink()
    with pytest.raises(IntegrityError, match=r"--weights .* changed while it was read"):
        look.check_unchanged("--weights")
