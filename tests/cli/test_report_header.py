"""The report of a request says of which request and network it is, as the receipt beside it does."""

import json
from importlib import import_module

from tests.cli.test_commands import report
from tests.cli.workshop import BASE, QUICK, spotless


def test_request_and_digests_of_the_report_are_those_of_the_receipt(here, monkeypatch):
    judged = report("forgotten")
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *given, **named: judged)
    assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run").code == 0
    receipt = json.loads((here / "run/receipt.json").read_text())
    request = receipt["predicate"]["request"]["identity"]
    [network] = [s["digest"]["sha256"] for s in receipt["subject"] if s["name"] == "scrubbed.safetensors"]
    original = receipt["predicate"]["inputs"]["weights"]["commitment"]
    page = (here / "run/report.html").read_text()
    top = page[: page.index('class="word"')]
    for value in (request, f"SHA-256 {network}", f"commitment {original}"):
        assert f"<dd>{value}</dd>" in top
    header = json.loads((here / "run/verdict.json").read_text())["header"]
    assert header["request"] == request
    assert spotless("verify", "run").code == 0
