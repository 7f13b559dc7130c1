"""The table of methods: one row each, as they declare themselves, with costs that their own counts give."""

from dataclasses import fields

from spotlessnet.cli.listing import methods
from spotlessnet.core.scrub import METHODS
from spotlessnet.methods.catalogue import BY_FLAG, COLUMNS, FIRST, ranked, reference_request, short_paper, table
from spotlessnet.requests.case import Case, as_flag


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_every_method_has_one_row_with_what_it_declares():
    head, _, *rows = cells(table())
    assert tuple(head) == COLUMNS
    assert [row[1].strip("`") for row in rows] == [BY_FLAG.get(name, name) for name in METHODS.names()]
    for entry, row in zip(METHODS.entries(), rows, strict=True):
        assert row[0] == f"`{entry.python_name}`"
        assert row[3] == ", ".join(entry.needs)
        assert row[5] == entry.guarantee


def test_costs_are_shares_of_a_retraining():
    costs = {row[1].strip("`"): row[4] for row in cells(table())[2:]}
    assert costs["retrain"] == "100%"
    assert costs["finetune"] == "33%"  # ten of thirty epochs
    assert costs["--max-nats"] == costs["mixed-linear"] == "–"
    trained, split = reference_request()
    share = METHODS.find("ntk")().cost(trained, split).usual / METHODS.find("retrain")().cost(trained, split).usual
    assert costs["ntk"] == f"{share:.0%}"


def test_some_may_come_first():
    rows = cells(table(first=("ntk", "fisher")))[2:]
    assert [row[1] for row in rows[:3]] == ["`ntk`", "`fisher`", "`amun`"]


def test_what_to_try_first_comes_first():
    assert [entry.name for entry in ranked()[: len(FIRST)]] == list(FIRST)
    assert len(ranked()) == len(METHODS.names())


def test_every_name_in_the_column_of_commands_works_there():
    """The fault before: `within-budget` stood there, which no command takes."""
    words = [row[1].strip("`") for row in cells(table())[2:]]
    flags = {as_flag(field.name) for field in fields(Case)}
    assert [word for word in words if word not in flags and word not in methods()] == []


def test_papers_are_short():
    assert short_paper("this package") == "this package"
    assert short_paper("Golatkar, Achille and Soatto (2020), Title") == "Golatkar et al. (2020), Title"
