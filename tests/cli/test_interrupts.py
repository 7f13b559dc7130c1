"""Control-C in the middle of the work of every command, or a signal to end: one line, nothing half-written."""

import signal
import subprocess
import sys
from functools import partial

import pytest

from spotlessnet.requests.audits import LEAST
from tests.cli.workshop import BASE, RECIPE, spotless
from tests.cli.workshop import QUICK as METHOD

SLOW = """
import sys, time
def train(model, examples, seed, epochs=2):
    print("training", file=sys.stderr, flush=True)
    time.sleep(60)
    return model
"""
TRAINED = ("--init", "start.safetensors", "--train", "slow.py:train")
ENDED = "interrupted: nothing half-written was left; run it again"

COMMANDS = {
    "scrub": ("scrub", *BASE, *TRAINED, "--method", "retrain"),
    "scrub, in its audit": ("scrub", *BASE, *TRAINED, "--method", "fisher", "--set", "strength=1e-8", "--audit"),
    "audit": ("audit", *BASE, *TRAINED, "--method", "fisher"),
    "precompute": ("precompute", *BASE[:6], *TRAINED, "--rank", "2", "--folds", "2"),
    "compare": ("compare", *BASE, *TRAINED, "--methods", "fisher"),
}


IN_ITS_AUDIT = COMMANDS["scrub, in its audit"]

QUICK = "scrub, in its audit"
"""Each takes seconds, most of them for torch: the others are for the slow tests."""


@pytest.mark.parametrize(
    "asked",
    [pytest.param(asked, id=name, marks=() if name == QUICK else pytest.mark.slow) for name, asked in COMMANDS.items()],
)
def test_control_c_while_networks_are_trained(here, asked):
    ends_with(here, asked, signal.SIGINT, 130, ENDED)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 143, ENDED.replace("interrupted", "terminated")),
        pytest.param(signal.SIGHUP, 129, ENDED.replace("interrupted", "hung up"), marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_end_leaves_no_weights_without_their_receipt(here, number, code, said):
    """Weights lay there without a receipt, and nothing was said: the signal ended the process where it stood."""
    ends_with(here, IN_ITS_AUDIT, number, code, said)


TWICE = """
import os, signal, sys
from spotlessnet.cli import main
from spotlessnet.core import files
from spotlessnet.store import receipts
def ended(path, *given, **more):
    if path.name == sys.argv[1]:
        print([one.name for one in path.parent.glob("*.safetensors")], flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    return write(path, *given, **more)
write = files.write_whole
files.write_whole = receipts.write_whole = ended
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("written", ["report.html", "receipt.json"])
def test_a_signal_while_the_report_is_written_leaves_all_or_nothing(here, written):
    """Twice, as when a shell and a service manager both send it."""
    asked = ("scrub", *BASE, *RECIPE, *METHOD, "--audit", "--seeds", str(LEAST), "--quiet", "--out", "run")
    ran = subprocess.run([sys.executable, "-c", TWICE, written, *asked], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (143, "")
    # What is printed meanwhile goes to stderr.
    assert ran.stderr.splitlines() == ["['scrubbed.safetensors']", ENDED.replace("interrupted", "terminated")]
    assert not (here / "run").exists()


def test_a_signal_that_is_ignored_stays_ignored(here):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert spotless("list").code == 0
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def ends_with(here, asked, number, code, told):
    (here / "slow.py").write_text(SLOW)
    # Whoever runs the tests may ignore signals, and children would inherit that.
    heard = partial(signal.signal, number, signal.SIG_DFL)
    command = [sys.executable, "-m", "spotlessnet", *asked, "--out", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heard) as ran:
        assert ran.stderr is not None
        said = []
        for line in ran.stderr:
            said.append(line)
            if line == "training\n":
                break
        assert said[-1:] == ["training\n"], said
        ran.send_signal(number)
        rest = ran.stderr.read().splitlines()
        assert ran.wait(30) == code
    assert rest == [told]
    assert not list((here / "run").rglob("*"))
    unlocked = spotless(*asked, "--out", "run", "--dry-run")
    assert unlocked.code == 0, unlocked.err
