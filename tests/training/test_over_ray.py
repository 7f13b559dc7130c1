"""The same tasks over a local Ray cluster of two workers: the same networks, to the bit. Skipped without Ray."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import spotlessnet
from spotlessnet.auditing.run_audit import audit
from spotlessnet.core.errors import DataError, NeedError, NumericsError
from spotlessnet.methods.gradient_ascent import GradientAscent
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.training import over_ray
from spotlessnet.training.many import Executor, train_many
from tests.cli.test_kept_trainings import KNOWN, METHOD, TRAIN, told, trained
from tests.cli.workshop import BASE, furnish, spotless
from tests.training.test_many import begun, my_train, rows, same, split

__all__ = ["split"]


@pytest.fixture(scope="module")
def cluster():
    """Two workers, which find this package where this process has it."""
    ray = pytest.importorskip("ray")
    places = os.pathsep.join([str(Path(spotlessnet.__file__).parents[1]), str(Path(__file__).parents[2])])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": places}},
        logging_level="error",
    )
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_networks_trained_by_two_workers_are_those_trained_in_turn(cluster, split):
    keep = ~torch.eye(6, 40, dtype=torch.bool)
    ask = partial(train_many, [begun()] * 6, split.whole, seeds=range(6), keep=keep)
    same(ask(executor=Executor(workers="ray")), ask())


@pytest.mark.filterwarnings("ignore")
def test_an_audit_over_workers_is_the_audit_in_turn(cluster, split, tmp_path):
    ask = partial(audit, begun(), split, GradientAscent(epochs=1), name="ascent", seeds=5)
    plain = ask()
    found = ask(executor=Executor(tmp_path, "ray"))
    again = ask(executor=Executor(tmp_path))  # what workers made is kept, and is what one process would have made
    for report in (found, again):
        assert [(row.key, row.value) for row in report.rows] == [(row.key, row.value) for row in plain.rows]
        assert report.verdict == plain.verdict
        assert report.curves == plain.curves


@pytest.mark.filterwarnings("ignore")
def test_fold_models_come_out_the_same_and_what_a_worker_raises_is_raised_here(cluster, split):
    plain = train_fold_models(begun(), split.whole, folds=3)
    found = train_fold_models(begun(), split.whole, folds=3, executor=Executor(workers="ray"))
    assert torch.equal(plain.weights, found.weights)

    def breaks(model, examples, seed):
        if len(examples) < 40:
            model.head.bias.data.fill_(torch.nan)
        return my_train(model, examples, seed) if len(examples) == 40 else model

    def fails(model, examples, seed):
        raise KeyError("of somebody else")

    with pytest.raises(DataError, match=r"a worker met KeyError: 'of somebody else'\. Workers need"):
        train_fold_models(begun(trainer=fails), split.whole, executor=Executor(workers="ray"))
    with (
        pytest.warns(UserWarning, match="broke and begins again in another order"),
        pytest.raises(NumericsError, match="must be finite"),
    ):
        train_fold_models(begun(trainer=breaks), split.whole, executor=Executor(workers="ray"))


@pytest.mark.filterwarnings("ignore")
def test_the_command_takes_modules_by_their_files_to_the_workers(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(furnish(tmp_path / "work"))
    Path("mytrain.py").write_text("import helping\n" + TRAIN.replace("lr=0.05", "lr=helping.RATE"))
    Path("helping.py").write_text("RATE = 0.05\n")
    log = str(Path.cwd() / "trained.log")
    Path("mytrain.py").write_text(Path("mytrain.py").read_text().replace('"trained.log"', repr(log)))
    asked = ("audit", *BASE, *KNOWN, *METHOD, "--seeds", "5", "--seed", "1")
    plain = spotless(*asked, "--out", "plain")
    assert len(trained()) == 17, plain.err
    ray = spotless(*asked, "--workers", "ray", "--out", "ray")
    assert ray.code == plain.code, ray.err
    assert len(trained()) == 17
    assert "17 trainings, one by one over Ray: 5 with the rows, 10 without, 2 watched" in ray.err
    assert told("ray") == told("plain")


def test_without_ray_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NeedError, match=r"needs Ray .* `pip install spotlessnet\[ray\]`, or train in turn"):
        Executor(workers="ray")
    with pytest.raises(NeedError):
        next(over_ray.over_ray([], rows()))
