"""The table of methods: one row each, as they declare themselves, with costs that their own counts give."""

from spotlessnet.core.scrub import METHODS
from spotlessnet.methods.catalogue import COLUMNS, reference_request, short_paper, table


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_every_method_has_one_row_with_what_it_declares():
    head, _, *rows = cells(table())
    assert tuple(head) == COLUMNS
    assert [row[1].strip("`") for row in rows] == list(METHODS.names())
    for entry, row in zip(METHODS.entries(), rows, strict=True):
        assert row[0] == f"`{entry.python_name}`"
        assert row[3] == ", ".join(entry.needs)
        assert row[5] == entry.guarantee


def test_costs_are_shares_of_a_retraining():
    costs = {row[1].strip("`"): row[4] for row in cells(table())[2:]}
    assert costs["retrain"] == "100%"
    assert costs["finetune"] == "33%"  # ten of thirty epochs
    assert costs["within-budget"] == costs["mixed-linear"] == "–"
    trained, split = reference_request()
    share = METHODS.find("ntk")().cost(trained, split).usual / METHODS.find("retrain")().cost(trained, split).usual
    assert costs["ntk"] == f"{share:.0%}"


def test_some_may_come_first():
    rows = cells(table(first=("ntk", "fisher")))[2:]
    assert [row[1] for row in rows[:3]] == ["`ntk`", "`fisher`", "`bad-teacher`"]


def test_papers_are_short():
    assert short_paper("this package") == "this package"
    assert short_paper("Golatkar, Achille and Soatto (2020), Title") == "Golatkar et al. (2020), Title"
