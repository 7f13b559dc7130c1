"""A made-up story that uses every part of the page; its numbers are drawn, not measured."""

import random
from functools import cache

from spotlessnet.auditing.audit_report import AuditReport, Cost, Curves
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.verdict import Check, Checks, Outcome, Verdict
from spotlessnet.report.page import page

READOUTS = (
    ("error on test", "share", "as retrained", {"original": 0.05, "NTK": 0.055, "fine-tune": 0.05, "retrained": 0.056}),
    ("error on forget", "share", "as retrained", {"original": 0.0, "NTK": 0.28, "fine-tune": 0.04, "retrained": 0.3}),
    ("relearn time", "epochs", "as retrained", {"original": 1, "NTK": 22, "fine-tune": 3, "retrained": 24}),
    ("activation distance", "L1, 0 to 2", "low", {"original": 0.7, "NTK": 0.2, "fine-tune": 0.6, "retrained": 0.0}),
)


def rows(seeds: int = 8) -> tuple[Row, ...]:
    chance = random.Random(0)
    made = []
    for name, unit, ideal, values in READOUTS:
        for method, value in values.items():
            for seed in range(seeds):
                drawn = value * chance.gauss(1, 0.05)
                seconds = {"original": 4.0, "NTK": 0.9, "fine-tune": 1.2, "retrained": 3.9}[method]
                made.append(Row("example", method, name, seed, drawn, unit=unit, ideal=ideal, seconds=seconds))
    return tuple(made)


def report(word: Outcome = "forgotten") -> AuditReport:
    chance = random.Random(1)
    names = ("original", "scrubbed", "retrained")
    checks = (
        Check("remembered share", "same", 0.03, -0.05, 0.11, 0.2),
        Check("error on test rows", "same", 0.002, -0.003, 0.006, 0.01, "guards utility"),
    )
    curves = Curves(
        trade_off={"NTK then Fisher": [(10.0**e, 0.06 + 0.1 * 2.0**-e, 0.01) for e in range(-2, 4)]},
        roc={name: ([0.01, 0.1, 0.5, 1], [0.01 + i / 20, 0.1 + i / 5, 0.5 + i / 6, 1]) for i, name in enumerate(names)},
        confidence={name: [chance.betavariate(2 + 3 * i, 2) for _ in range(100)] for i, name in enumerate(names)},
        paths={name: [(t / 10, (i - 1) * t * t / 100) for t in range(11)] for i, name in enumerate(names)},
        leak={name: [chance.lognormvariate(i, 1) for _ in range(50)] for i, name in enumerate(("forgotten", "test"))},
    )
    return AuditReport(
        title="Forgetting 25 rows of a digit classifier",
        method="NTK",
        rows=rows(),
        verdict=Verdict(
            word, "consistent with retraining in every check", 0.08, 8, "forgotten", "not forgotten", Checks(checks)
        ),
        request={"asked for": "ids in column 'id'", "rows to forget": 25, "ids missing": 0, "duplicates": 1},
        settings={"output": "softmax", "damping": 0.001},
        assumed=["the start of training is not known; the decay was taken to pull to zero"],
        lost=["the step aims at another optimum"],
        curves=curves,
        costs=[Cost("NTK", 0.9, 120.0), Cost("fine-tune", 1.2, 80.0), Cost("retrained", 3.9, 90.0, "one run")],
        limits=["Copies of the weights made elsewhere are not covered.", "No attack on gradients was tried."],
        rerun_command="spotless audit --config run.toml --out again/",
        made={"spotlessnet": "0.1.0", "torch": "2.13.0", "date": "2026-01-01"},
    )


@cache
def page_of_example(word: Outcome = "forgotten") -> str:
    """Its page, drawn once for all tests that only read it: the figures take most of a second."""
    return page(report(word))
