"""The examples of the page on any network run, and its table is that of their rows."""

import re

import benchmarks.networks_table as made
import benchmarks.real_page as real_page
import benchmarks.support_table as support
import pytest

from spotlessnet.requests.serving import Unlearned
from tests.docs.blocks import ROOT

NEEDS = {
    "hugging_face_classifier": ("transformers", "accelerate"),
    "vision_transformer": ("transformers",),
    "lora": ("transformers", "peft"),
    "lightning_module": ("lightning",),
}


def test_the_table_is_that_of_its_rows_and_every_example_is_in_it():
    page = made.PAGE.read_text(encoding="utf-8")
    assert {path.stem for path in made.EXAMPLES.glob("*.py")} == set(made.ORDER) == set(made.rows())
    assert made.PLACE.fill(page, made.table()) == page


def test_the_tables_of_what_is_supported_are_those_of_the_rows():
    page = support.PAGE.read_text(encoding="utf-8")
    assert support.filled(page) == page
    assert set(support.SHORT) == set(made.ORDER)


@pytest.mark.parametrize("name", made.ORDER)
def test_glue_is_at_most_ten_lines_and_marked(name):
    assert 1 <= made.glue(name) <= 10
    text = (made.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    outside = re.sub(r"# glue\n.*?# end of glue", "", text, flags=re.S)
    assert "sn.unlearn(" not in outside
    assert "audit=" not in outside
    assert (ROOT / "docs" / "networks" / f"{name}.py").is_file()


LONG = ("own_cnn", "hugging_face_classifier", "causal_language_model", "vision_transformer")
"""Transformers train for most of a minute, the CNN for ten seconds: these run with `make slow`, the others always."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in made.ORDER])
def test_an_example_unlearns_and_gives_a_verdict(name):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: the example was not run")
    done = made.example(name).main()
    assert isinstance(done, Unlearned)
    assert done.report is not None
    assert done.plan is not None
    row = made.rows()[name]
    assert done.plan.method == row["method"]
    assert done.report.outcome in ("forgotten", "inconclusive", "never saw the rows"), done.report.reason
    assert done.report.verdict is not None
    assert done.report.verdict.power == "not forgotten" or done.report.outcome != "forgotten"
    split = done.plan.opened.split
    assert made.refused(done.plan.opened.trained, split) == row["refused"]


def test_the_section_on_real_networks_is_that_of_its_rows():
    page = real_page.PAGE.read_text(encoding="utf-8")
    assert (real_page.PLACE.begin in page) == (real_page.KEPT / "faces.jsonl").is_file()
    if real_page.PLACE.begin in page:
        assert real_page.PLACE.fill(page, real_page.section()) == page
