"""The other commands, how they talk, and how they end."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from functools import partial
from importlib import import_module

import pytest

import spotlessnet
from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.verdict import Outcome, Verdict
from spotlessnet.cli.common import GROUPS
from spotlessnet.core import display, progress
from spotlessnet.methods import Fisher
from spotlessnet.requests.case import Case, as_flag
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless

COMMANDS = ("demo", "scrub", "audit", "precompute", "compare", "reproduce", "list", "inspect", "verify", "purge")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_the_common_flags(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ended = spotless(command, "--help")
    assert ended.code == 0
    assert f"spotless {command}" in ended.out
    assert ended.out.count(f"spotless {command}") >= 2  # usage and example
    assert all(flag in ended.out for flag in ("--json", "--quiet", "--debug"))
    assert "\x1b" not in ended.out


def test_every_field_of_a_case_has_a_flag_and_an_explanation(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = spotless("scrub", "--help").out
    told = [name for names in GROUPS.values() for name in names]
    assert sorted(told) == sorted(f.name for f in fields(Case))
    assert all(as_flag(name) in text for name in told)
    assert "they are imported, so their code runs" in " ".join(text.split())


def test_no_command_shows_help_and_the_version_is_told():
    ended = spotless()
    assert ended.code == 2
    assert "demo" in ended.out
    assert spotless("--version").out.strip() == spotlessnet.__version__


def report(word: Outcome | None) -> AuditReport:
    verdict = None if word is None else Verdict(word, "because", 0.1, 8, "forgotten", "not forgotten")
    rows = tuple(Row("audit", m, "error on forget", s, 0.1 * s) for m in ("original", "x", "retrained") for s in (0, 1))
    return AuditReport(title="t", method="x", rows=rows, verdict=verdict, limits=("Nothing was retrained.",))


@pytest.mark.parametrize(
    ("word", "code"),
    [("forgotten", 0), ("not forgotten", 1), ("inconclusive", 6), ("never saw the rows", 0), (None, 6)],
    ids=str,
)
def test_the_audits_word_is_the_exit_code(here, monkeypatch, word, code):
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *given, **named: report(word))
    ended = spotless("audit", *BASE, *QUICK, "--out", "audited")
    assert ended.code == code, ended.err
    assert ended.out.startswith((word or "not judged") + ": ")
    assert {p.name for p in (here / "audited").iterdir()} >= {"report.html", "rows.jsonl", "rows.csv", "model-card.md"}
    ended = spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run", "--json")
    assert ended.code == code
    receipt = json.loads(ended.out)["receipt"]
    assert receipt["predicate"]["audit"][0]["verdict"] == (word or "not judged")
    assert {s["name"] for s in receipt["subject"]} >= {"scrubbed.safetensors", "report.html"}
    assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run", "--resume").code == code


def test_an_audit_without_start_and_recipe_says_that_it_cannot_tell(here):
    ended = spotless("audit", *BASE, *QUICK, "--test", "mydata.py:test", "--out", "audited", "--quiet")
    assert ended.code == 6, ended.err
    assert ended.out.startswith("not judged: ")


def test_compare_lines_methods_up_and_goes_on_where_it_stopped(here):
    asked = ("compare", *BASE, *RECIPE, "--methods", "finetune,fisher", "--seeds", "2", "--out", "compared")
    ended = spotless(*asked, "--set", "finetune.epochs=1")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert [
        line.split()[0] for line in lines if line.split()[0] in ("original", "finetune", "fisher", "retrained")
    ] == [
        "original",
        "finetune",
        "fisher",
        "retrained",
    ]
    rows = (here / "compared/rows.jsonl").read_text()
    assert spotless(*asked, "--set", "finetune.epochs=1", "--resume").code == 0
    assert (here / "compared/rows.jsonl").read_text() == rows
    assert "such as ntk.damping=" in spotless(*asked, "--set", "damping=1").err
    assert "Comparing needs --init, --epochs and --lr" in spotless("compare", *BASE, "--out", "x").err


def test_compare_says_which_method_broke_down_and_shows_the_others(here):
    asked = ("compare", *BASE, *RECIPE, "--methods", "finetune,fisher", "--seeds", "2", "--out", "compared")
    ended = spotless(*asked, "--set", "finetune.lr=1e30")
    assert ended.code == 0, ended.err
    assert "finetune: 2 of 2 trainings gave no number: The training loss must be finite" in ended.err
    [own] = [line for line in ended.out.splitlines() if line.startswith("finetune")]
    assert set(own.split()[1:]) == {"–"}
    [other] = [line for line in ended.out.splitlines() if line.startswith("fisher")]
    assert "–" not in other


def test_list_shows_methods_with_settings_as_text_and_as_json():
    found = json.loads(spotless("list", "--json").out)
    assert found["methods"]["ntk"]["settings"]["tolerance"] == 1e-6
    assert "within-budget" not in found["methods"]
    assert found["datasets"]["digits"]["about"] == "comes with scikit-learn"
    assert "gradient-ascent" in spotless("list", "methods").out
    assert spotless("list", "nonsense").code == 2


def test_no_name_in_a_list_is_cut_where_the_window_is_narrow(monkeypatch):
    """The fault before: `out-of-fold-distil…` is no method, and `error_tolerance=0.…` no setting."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = spotless("list", "methods").out
    assert "…" not in shown
    names = json.loads(spotless("list", "methods", "--json").out)["methods"]
    assert all(any(line.startswith(f"{name} ") for line in shown.splitlines()) for name in names)


def test_inspect_and_verify_look_and_run_nothing(here):
    assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0
    found = json.loads(spotless("inspect", "model.safetensors", "--json").out)
    assert (found["kind"], found["tensors"], found["numbers"], found["finite"]) == ("checkpoint", 4, 51, True)
    assert json.loads(spotless("inspect", "run", "--json").out)["kind"] == "receipt"
    assert spotless("verify", "run", "--forget", "forget.csv").out.splitlines() == [
        "verified receipt.json: complete, and as it was written",
        "verified scrubbed.safetensors",
        "verified forget.csv",
        "not checked: who wrote the receipt: it is not signed, and whoever holds `private` could write another",
    ]
    (here / "other.csv").write_text("id\nperson-2\n")
    ended = spotless("verify", "run", "--forget", "other.csv")
    assert ended.code == 7
    assert "other.csv is not the list that the receipt was written for." in ended.err
    shutil.copy(here / "model.safetensors", here / "run/scrubbed.safetensors")
    ended = spotless("verify", "run/receipt.json")
    assert ended.code == 7
    assert "its digest differs" in ended.err


def test_experiments_are_found_by_name(monkeypatch, here):
    class Experiment:
        """Nothing much."""

        @staticmethod
        def toy():
            return {"seeds": 1}

        @staticmethod
        def full():
            return {"seeds": 10}

        @staticmethod
        def run(settings, out, data):
            return [Row("nothing", "m", "r", 0, float(settings["seeds"]))]

        @staticmethod
        def draw(out):
            return [out / "figure.svg"]

    monkeypatch.setattr("spotlessnet.experiments.EXPERIMENTS", {"nothing": Experiment}, raising=False)
    assert json.loads(spotless("reproduce", "nothing", "--json", "--out", "r").out)["rows"][0]["value"] == 1
    assert json.loads(spotless("reproduce", "nothing", "--full", "--json", "--out", "f").out)["rows"][0]["value"] == 10
    assert "'seeds': 10" in spotless("reproduce", "nothing", "--full", "--dry-run").out
    assert "Did you mean 'nothing'?" in spotless("reproduce", "nothin").err


def test_the_demo_says_first_where_the_report_will_be(here, monkeypatch):

    monkeypatch.setattr(
        import_module("spotlessnet.demo"), "demo", lambda out, seeds: (report("forgotten"), out / "r.html")
    )
    ended = spotless("demo", "--out", "d")
    assert ended.code == 0
    assert ended.err.startswith(f"The report will be {here / 'd' / 'report.html'}")
    assert ended.out == "d/r.html\n"


def test_quiet_is_quiet_and_json_is_one_document(here):
    ended = spotless("scrub", *BASE, *QUICK, "--out", "run", "--quiet", "--json")
    assert ended.err == ""
    assert json.loads(ended.out)["schema"] == 1


def test_with_json_the_progress_is_still_told_on_stderr(here, monkeypatch):
    """The fault before: an audit of minutes for a script was silent."""
    for module, name in ((progress, "PATIENCE"), (display, "FIRST"), (progress, "BEAT")):
        monkeypatch.setattr(module, name, 0.001)
    ended = spotless("scrub", *BASE, *QUICK, "--out", "run", "--json")
    assert "reading and checking: at work for" in ended.err
    assert json.loads(ended.out)["status"] == "done"


def test_a_mistake_of_ours_is_one_line_and_a_traceback_only_with_debug(here, monkeypatch):
    def broken(*given):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Fisher, "spread", broken)
    ended = spotless("scrub", *BASE, *QUICK, "--out", "a", "--quiet")
    assert ended.code == 70
    assert ended.err == "error[internal]: ZeroDivisionError: oh. This is a mistake of spotless; --debug shows where.\n"
    ended = spotless("scrub", *BASE, *QUICK, "--out", "b", "--quiet", "--debug")
    assert "Traceback" in ended.err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried")])
def test_running_out_of_memory_is_told(here, monkeypatch, error):
    def broken(*given):
        raise error

    monkeypatch.setattr(Fisher, "spread", broken)
    ended = spotless("scrub", *BASE, *QUICK, "--out", "a", "--quiet")
    assert ended.code == 4
    assert "the memory of this machine did not suffice" in ended.err


def test_an_interrupt_leaves_nothing_behind(here, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fisher, "spread", interrupted)
        ended = spotless("scrub", *BASE, *QUICK, "--out", "run", "--quiet")
    assert ended.code == 130
    assert ended.err == "interrupted: nothing half-written was left; run it again\n"
    assert not (here / "run").exists()
    assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0


def test_what_an_earlier_run_began_is_left_to_resume_and_that_is_said(here, monkeypatch):
    def broken(*given):
        raise RuntimeError("somewhere")

    (here / "run/private").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(Fisher, "spread", broken)
        ended = spotless("scrub", *BASE, *QUICK, "--out", "run", "--resume", "--quiet")
        assert ended.err.endswith("run holds what was begun: give --resume to go on there\n")
        new = spotless("scrub", *BASE, *QUICK, "--out", "other", "--quiet")
        assert "--resume" not in new.err
    assert (here / "run/private/salt").is_file()
    assert not (here / "other").exists()


def test_words_are_checked_before_the_folder(here):
    (here / "full").mkdir()
    (here / "full/mine.txt").write_text("mine")
    assert "holds 1 file already" in spotless("scrub", *BASE, *QUICK, "--out", "full").err
    assert "'fishre'" in spotless("scrub", *BASE, "--method", "fishre", "--out", "full").err
    (here / "forget.csv").write_text("")
    assert "names no id" in spotless("scrub", *BASE, *QUICK, "--out", "full").err


def test_control_c_in_a_real_process_ends_with_130(here):
    (here / "slow.py").write_text(
        "import os, time, mydata\ndef train():\n    os.write(1, b'reading\\n')\n    time.sleep(60)\n"
    )
    words = ["slow.py:train" if word == "mydata.py:train" else word for word in BASE]
    command = [sys.executable, "-m", "spotlessnet.cli", "scrub", *words, *QUICK, "--out", "run"]
    # Whoever runs the tests may ignore interrupts, and children would inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heard, **pipes) as process:  # type: ignore[call-overload]  # as a table
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert (
            process.stderr.read().removeprefix("spotless scrub: loading torch\n")
            == "interrupted: nothing half-written was left; run it again\n"
        )
    assert not (here / "run").exists()
