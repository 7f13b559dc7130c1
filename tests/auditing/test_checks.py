"""Checks, verdict and report are one class each, addressed by name; former names warn."""

import pickle

import pytest

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.verdict import Check, Checks, Verdict
from spotlessnet.core.errors import MismatchError, SettingError
from tests.report.example import report

SHARE = Check("remembered share", "same", 0.03, -0.05, 0.11, 0.2)
TEST = Check("error on test rows", "unclear", 0.02, -0.01, 0.05, 0.01, guards=True)


def test_a_check_is_found_by_its_name_in_checks_verdict_and_report():
    checks = Checks([SHARE, TEST])
    verdict = Verdict("inconclusive", "because", 0.08, 8, "forgotten", "not forgotten", checks)
    told = AuditReport("t", "x", (), verdict)
    assert told.checks["error on test rows"] is verdict.checks["error on test rows"] is checks[1]
    assert list(told.checks) == [SHARE, TEST]
    assert told.checks.names == ("remembered share", "error on test rows")
    assert (told.outcome, told.reason) == ("inconclusive", "because")
    assert pickle.loads(pickle.dumps(verdict)) == verdict


def test_a_name_that_is_not_there_says_which_are():
    with pytest.raises(SettingError, match=r"no check 'relearn time' in this audit. It has remembered share; what"):
        Checks([SHARE])["relearn time"]
    assert Checks([SHARE]).get("relearn time") is None
    with pytest.raises(MismatchError, match="a name of its own, but got remembered share, remembered share"):
        Checks([SHARE, SHARE])


def test_without_a_verdict_there_are_no_checks_and_the_first_limit_is_the_reason():
    told = AuditReport("t", "x", (), limits=("Nothing was retrained.", "Nor this."))
    assert told.checks == ()
    assert (told.outcome, told.reason) == ("not judged", "Nothing was retrained.")


def test_former_names_warn_and_give_the_same():
    told = report()
    assert told.verdict is not None
    with pytest.warns(DeprecationWarning, match=r"`AuditReport.judgement` is now called `verdict`"):
        assert told.judgement is told.verdict
    with pytest.warns(DeprecationWarning, match=r"`Verdict.word` is now called `outcome`"):
        assert told.verdict.word == "forgotten"
    with pytest.warns(DeprecationWarning, match=r"`Verdict.findings` is now called `checks`"):
        assert told.verdict.findings == told.checks
    with pytest.warns(DeprecationWarning, match=r"`AuditReport\(again=...\)` is now called `rerun_command`"):
        assert AuditReport("t", "x", (), again="a").rerun_command == "a"  # type: ignore[call-arg]  # the former name
