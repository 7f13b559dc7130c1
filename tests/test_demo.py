"""The demo: its problem is one that matters, and it ends with a report."""

import pytest
import torch

from spotlessnet.core.data import Data
from spotlessnet.demo import METHOD, demo, methods, mislabelled


def test_only_the_chosen_labels_move():
    data = Data.of((torch.zeros(50, 1), torch.arange(50) % 10))
    changed, chosen = mislabelled(data, 7, seed=0)
    differ = (changed.labels() != data.labels()).nonzero().squeeze(1)
    assert sorted(chosen) == differ.tolist()
    assert len(chosen) == 7


def test_the_method_that_is_judged_is_among_the_methods():
    assert METHOD in methods()


@pytest.mark.slow
def test_the_demo_ends_with_a_report_that_catches_the_original(tmp_path):
    report, path = demo(tmp_path)
    names = {"report.html", "rows.csv", "rows.jsonl", "model-card.md", "verdict.json"}
    assert {p.name for p in tmp_path.iterdir()} == names
    assert path.read_text().count("<figure") == 7
    assert report.verdict is not None
    assert report.verdict.power == "not forgotten"
    assert report.verdict.oracle == "forgotten"
    assert report.verdict.outcome == "forgotten"
