"""Every experiment runs at toy size, resumes, draws, and records how it was run."""

import json
import math
from dataclasses import replace

import pytest

from spotlessnet.auditing.rows import read_rows
from spotlessnet.auditing.summary import summarise
from spotlessnet.core.progress import quiet
from spotlessnet.experiments import EXPERIMENTS

OURS = [
    name for name, one in EXPERIMENTS.items() if one.module.split(".")[0] in ("eternal_sunshine", "reinterpretation")
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A function that runs an experiment at toy size once."""
    known = {}

    def run(name, part=None):
        if name not in known:
            out = tmp_path_factory.mktemp(name)
            with quiet():
                rows = EXPERIMENTS[name].run(replace(EXPERIMENTS[name].toy(), device="cpu"), out)
            known[name] = (rows, out)
        return known[name]

    return run


def value(rows, method, readout, experiment=""):
    found = [
        line.mean.value
        for line in summarise(rows)
        if line.method == method and line.readout == readout and experiment in line.experiment
    ]
    assert len(found) == 1, (method, readout, found)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_toy_runs_resumes_and_draws(name, ran):
    rows, out = ran(name)
    assert rows
    assert all(math.isfinite(row.value) or row.unit == "nats" for row in rows)
    record = json.loads((out / "runs.jsonl").read_text().splitlines()[-1])
    assert record["experiment"] == name
    assert record["seconds"] > 0
    assert record["torch"]
    assert record["device"]
    assert record["command"].startswith(f"python -m spotlessnet.experiments {name}")
    before = (out / "rows.jsonl").read_bytes()
    with quiet():
        EXPERIMENTS[name].run(replace(EXPERIMENTS[name].toy(), device="cpu"), out)
    assert (out / "rows.jsonl").read_bytes() == before
    paths = EXPERIMENTS[name].draw(out)
    assert paths
    assert all(path.stat().st_size > 1000 for path in paths)
    assert {path.suffix for path in paths} == {".svg", ".png"}


@pytest.mark.slow
def test_finite_time_newton_leaves_less_than_a_nat(ran):
    rows, _ = ran("figure_1")
    nats = "divergence of the clouds"
    assert value(rows, "Newton, finite time", nats) < 1.0
    assert value(rows, "Newton without time", nats) > 5.0
    assert value(rows, "original", nats) > 2 * value(rows, "Newton, finite time", nats)


@pytest.mark.slow
def test_ours_is_nearer_to_retraining_than_the_original_and_the_noise(ran):
    rows, _ = ran("table_1_mnist")
    for cohort in ("100 images", "a class"):
        error = {m: value(rows, m, "error on forget", cohort) for m in ("original", "ours", "retrained")}
        assert abs(error["ours"] - error["retrained"]) < abs(error["original"] - error["retrained"])
        nats = {m: value(rows, m, "information bound", cohort) for m in ("original", "ours", "retrained")}
        assert nats["retrained"] == 0
        assert nats["ours"] < nats["original"]
    assert value(rows, "hiding", "error on forget", "a class") == 1.0
    assert not [row for row in rows if row.method == "hiding" and "100 images" in row.experiment]


@pytest.mark.slow
def test_noise_takes_away_nats_and_costs_accuracy(ran):
    rows, _ = ran("figure_2")
    least, most = ("Fisher × 1", "Fisher × 10000")
    # The distance of the means counts for one over the noise; what the covariances differ by stays.
    a, b, c = (value(rows, f"Fisher × {scale}", "WhiteBox") for scale in (1, 100, 10000))
    assert (a - c) / (b - c) == pytest.approx((1 - 1e-4) / (1e-2 - 1e-4), rel=1e-3)
    assert value(rows, most, "error on test") > value(rows, least, "error on test")


@pytest.mark.slow
def test_pretraining_improves_the_bound(ran):
    rows, _ = ran("pretraining")
    assert value(rows, "pre-trained", "information bound") < value(rows, "random weights", "information bound")


def test_the_step_lands_on_the_retrained_optimum(ran):
    rows, _ = ran("shifting_optima")
    miss = "distance to the retrained optimum"
    assert value(rows, "Newton", miss) < 1e-12
    assert value(rows, "NTK", miss) < 1e-9
    assert value(rows, "equation 5 without the stray factor", miss) < 1e-12
    assert value(rows, "equation 5 as printed", miss) > 0.01


def test_the_corrected_root_is_the_least_of_the_lagrangian(ran):
    rows, out = ran("corrected_root")
    ratio = "Lagrangian over its least value"
    for s in ("1e-10", "1e-08", "1e-06"):
        assert value(rows, f"corrected at {s}", ratio) == pytest.approx(1.0, abs=1e-6)
        assert value(rows, f"as printed at {s}", ratio) > 10
        assert value(rows, f"as printed at {s}", "white-box bound") > 10 * value(
            rows, f"corrected at {s}", "white-box bound"
        )
    assert len(read_rows(out / "rows.jsonl")) == len(rows)
