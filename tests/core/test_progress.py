"""What a person sees while work is done: something soon, how far it is, and nothing once it is over."""

import io
import os
import pty
import subprocess
import sys
import time
import types
from contextlib import redirect_stderr

import pytest

from spotlessnet.core import display, progress
from spotlessnet.core.progress import Running, hush, quiet, track, working


@pytest.fixture
def hasty(monkeypatch):
    """All pauses a hundred times shorter."""
    for module, name in ((progress, "PATIENCE"), (display, "FIRST"), (display, "PAUSE")):
        monkeypatch.setattr(module, name, getattr(module, name) / 100)
    monkeypatch.setattr(progress, "BEAT", 0.001)


def logged(work) -> list[str]:
    with redirect_stderr(io.StringIO()) as err:
        list(work)
    return err.getvalue().splitlines()


def slow(count: int, seconds: float):
    for i in range(count):
        time.sleep(seconds)
        yield i


def test_without_a_terminal_lines_say_how_far_it_is(hasty):
    lines = logged(track(slow(8, 0.15), "counting", total=8))
    assert len(lines) >= 3
    assert all(line.startswith("counting: ") for line in lines)
    assert " of 8, about " in lines[-1]


def test_a_single_long_step_is_not_silent(hasty):
    """The fault before: a sign came only when a step was over."""
    lines = logged(track(slow(1, 0.5), "one step"))
    assert lines
    assert lines[0].startswith("one step: at work for ")


def test_short_work_and_quiet_work_say_nothing(hasty):
    assert logged(track(range(3), "counting")) == []
    with quiet():
        assert logged(track(slow(3, 0.2), "counting")) == []


def test_only_the_outermost_is_told(hasty):
    def nested():
        for _ in track(range(2), "outer"):
            yield from track(slow(2, 0.2), "inner")

    assert {line.split(":")[0] for line in logged(nested())} == {"outer"}


def test_a_block_without_steps_is_told_and_lets_go(hasty):
    def block():
        with working("reading"):
            yield from slow(1, 0.3)
        yield from track(slow(1, 0.3), "counting")

    assert {line.split(":")[0] for line in logged(block())} == {"reading", "counting"}
    assert progress._running == []


def test_lines_come_less_often_the_longer_it_takes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shown = display.Lines(Running("training", 1000, began=0.0))
    with redirect_stderr(io.StringIO()) as err:
        for second in range(36_000):  # ten hours
            now[0] = float(second)
            shown.update()
    assert 40 < len(err.getvalue().splitlines()) < 120


def test_an_error_takes_the_sign_away(hasty):
    class BrokenError(Exception): ...

    with pytest.raises(BrokenError), redirect_stderr(io.StringIO()):  # noqa: PT012  the loop must be left by it
        for _ in track(slow(3, 0.1), "counting"):
            raise BrokenError
    hush()
    assert progress._running == []
    assert display._shown == {}


def test_a_notebook_has_one_line_that_changes(hasty, monkeypatch):
    told: list[str] = []

    class Handle:
        def update(self, data, raw):
            told.append(data["text/plain"])

    def shown(data, raw, display_id):
        told.append(data["text/plain"])
        return Handle()

    class ZMQInteractiveShell: ...

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    ipython.display = types.ModuleType("IPython.display")  # type: ignore[attr-defined]
    ipython.display.display = shown
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    assert logged(track(slow(4, 0.1), "counting", total=4)) == []
    assert any("of 4, about" in line for line in told)
    assert told[-1] == ""


def test_on_a_terminal_a_bar_moves_within_a_second_and_leaves_nothing():
    code = (
        "import time\nfrom spotlessnet.core.progress import track\nprint('begun', flush=True)\n"
        "for _ in track(range(1), 'counting'):\n    time.sleep(1.5)\nprint('over')"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen, times, begun = b"", [], 0.0
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
            if not begun and b"begun" in seen:
                begun = time.monotonic()
            elif begun and b"over" not in seen:
                times.append(time.monotonic() - begun)
        process.wait()
    os.close(ours)
    assert b"counting" in seen
    assert times
    assert times[0] < 1.0
    assert len(times) > 3  # it moves while the step lasts
    assert seen.rstrip().endswith(b"over")


def test_a_child_process_shows_nothing_of_its_parent(hasty):
    def forked():
        for _ in track(range(1), "counting"):
            child = os.fork()
            if not child:
                os._exit(0 if progress._running == [] and not progress._watching.locked() else 1)
            yield os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert list(forked()) == [0]
