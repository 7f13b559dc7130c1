"""Sentences out of rows: every figure is that of its row, and the best of the others is the one nearest to one half."""

import json
from dataclasses import replace
from pathlib import Path

from benchmarks import klom_words as words
from spotlessnet.auditing.rows import Row

HERE = "CIFAR-10, random, large"


def _rows(method: str, auc: float, share: float | None = None) -> list[Row]:
    values = {words.COUNT: 30.0, words.CHANCE: 3.01, f"fit, {words.CHANCE}": 0.21}
    values |= {f"{r} on {p}": v for r, v in (("P95", 1.0), ("fit, P95", 2.0)) for p in words.PARTS}
    found = [Row(HERE, method, readout, 0, value) for readout, value in values.items()]
    found.append(Row(HERE, method, words.AUC, 0, auc, auc - 0.02, auc + 0.02))
    return found if share is None else [*found, Row(HERE, method, words.SHARE, 0, share)]


def test_a_set_in_words() -> None:
    others = [*_rows("low", 0.3, 0.1), *_rows("near", 0.61, 0.2), Row(HERE, words.RETRAINED, words.COUNT, 0, 29.0)]
    rows = [*_rows(words.ORIGINAL, 0.9), *_rows(words.OURS, 0.52, 0.05), *others]
    told = " ".join(words.of_set(rows, HERE).split())
    assert told.startswith(
        "- *random, large*, 30 originals and 29 retrained networks. Untouched: KLoM 1.00 / 1.00 / 1.00 "
    )
    assert "attacker 0.90 [0.88, 0.92]. out-of-fold-distillation (30 networks, 5.0% of FLOPs): KLoM 1.00" in told
    assert "fit 2.00 / 2.00 / 2.00 (0.21), attacker 0.52 [0.50, 0.54]." in told
    assert told.endswith("finds least after near: 0.61 [0.59, 0.63] (30 networks, 20.0%).")


def test_how_far_the_mean_margin_went() -> None:
    """From 8 to 6.5, where retraining's is 5: half of the way; the others' are not told."""
    rows = [*_rows(words.ORIGINAL, 0.9), *_rows(words.OURS, 0.52, 0.05), *_rows("near", 0.61, 0.2)]
    assert "of the way" not in words.of_set(rows, HERE)
    margins = {words.ORIGINAL: 8.0, words.OURS: 6.5, words.RETRAINED: 5.0, "near": 7.0}
    rows += [Row(HERE, method, words.MARGIN, 0, value) for method, value in margins.items()]
    told = " ".join(words.of_set(rows, HERE).split())
    assert told.count("of the way") == 1
    assert "attacker 0.52 [0.50, 0.54]. Its mean margin went 50% of the way. Of all others" in told


def test_what_two_networks_of_another_method_are_comparable_to() -> None:
    rows = [*_rows(words.ORIGINAL, 0.9), *_rows(words.OURS, 0.52, 0.05), *_rows("near", 0.61, 0.2)]
    rows.append(Row(HERE, words.ORIGINAL, words.PAIRS, 0, 0.7, 0.69, 0.71))
    assert "two networks" not in words.of_set(rows, HERE)
    rows.append(Row(HERE, words.OURS, words.PAIRS, 0, 0.56, 0.55, 0.57))
    told = " ".join(words.of_set(rows, HERE).split())
    expected = "0.70 [0.69, 0.71] (original), 0.56 [0.55, 0.57] (out-of-fold-distillation), two networks at a time."
    assert told.endswith(expected)


def test_the_longest_recipe_and_its_slowest_network() -> None:
    row = Row("resnet-9", "28 epochs, rate 0.4, 4 at once", "error on test", 1, 0.06, seconds=7.0)
    short = [replace(row, method="9 epochs, rate 0.4", value=0.1), replace(row, experiment="resnet-18", value=0.5)]
    told = " ".join(words.of_recipe([row, *short, replace(row, seed=2, value=0.07, seconds=8.0)]).split())
    assert told.startswith(
        "- The longest recipe tried with resnet-9: 28 epochs, rate 0.4, 4 at once, 8.0 s a network: "
    )
    assert told.endswith("error on test 6.50% (6.00% to 7.00%, 2 networks).")
    both = words.of_recipe([row, replace(row, experiment="resnet-9-whitened", value=0.05)])
    assert [line[:2] for line in both.splitlines() if "tried with" in line] == ["- ", "- "]
    assert words.of_recipe(short[1:]) == ""


def test_settings_that_were_chosen_are_told(tmp_path: Path) -> None:
    path = tmp_path / "klom-choose.jsonl"
    assert "not chosen" in words.of_settings(path, lambda _: {})
    tried = [(e, seed) for e in (1, 3) for seed in (0, 2)]
    lines = [{"method": words.OURS, "set": "random, large", "settings": f"{e}", "seed": seed} for e, seed in tried]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    told = words.of_settings(path, lambda _: {(words.OURS, "random, large"): {"epochs": 3}, ("other", "x"): {"lr": 1}})
    said = " ".join(told.split())
    assert said.endswith("of 2 of ours, each tried on 2 originals of a set, *random, large* {'epochs': 3}.")
    assert "'lr'" not in told
