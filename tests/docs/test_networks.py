"""The examples of the page on any network run, and its table is that of their rows."""

import re

import benchmarks.networks_table as made
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


@pytest.mark.parametrize("name", made.ORDER)
def test_glue_is_at_most_ten_lines_and_marked(name):
    assert 1 <= made.glue(name) <= 10
    text = (made.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    outside = re.sub(r"# glue\n.*?# end of glue", "", text, flags=re.S)
    assert "sn.unlearn(" not in outside
    assert "audit=" not in outside
    assert (ROOT / "docs" / "networks" / f"{name}.py").is_file()


@pytest.mark.parametrize("name", made.ORDER)
def test_an_example_unlearns_and_gives_a_verdict(name):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: the example was not run")
    done = made.example(name).main()
    assert isinstance(done, Unlearned)
    assert done.report is not None
    assert done.plan is not None
    row = made.rows()[name]
    assert done.plan.method == row["method"]
    assert done.report.outcome in ("forgotten", "inconclusive"), done.report.reason
    assert done.report.verdict is not None
    assert done.report.verdict.power == "not forgotten" or done.report.outcome == "inconclusive"
    split = done.plan.opened.split
    assert made.refused(done.plan.opened.trained, split) == row["refused"]
