"""Inputs that would hang, blow up or crash end in one line, soon, in little memory; those that are rare are read."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from spotlessnet.core.errors import DataError, NumericsError, ResourceError, SettingError
from spotlessnet.core.files import read_whole
from spotlessnet.methods import Fisher
from spotlessnet.precomputed.statistics_files import read_statistics
from spotlessnet.requests.methods import typed
from spotlessnet.store.checkpoints import read_metadata, read_weights
from tests.cli.workshop import furnish, spotless
from tests.hostile.attacks import arrays
from tests.hostile.costly import COSTLY
from tests.hostile.forked import imported, run
from tests.hostile.test_fixed import command

LIMIT = 5.0
ROOM = 2**30
"""Bytes above the baseline that a refusal may touch."""


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    imported()
    return run(["list"], tmp_path_factory.mktemp("told") / "err").peak


@pytest.mark.parametrize("name", COSTLY)
def test_ends_in_one_line_soon_and_in_little_memory(tmp_path, tmp_path_factory, monkeypatch, baseline, name):
    monkeypatch.chdir(furnish(tmp_path))
    attack = COSTLY[name]
    ended = run(command(attack.make(tmp_path)), tmp_path_factory.mktemp("told") / "err")
    assert ended.code == attack.code, ended.err
    assert ended.is_told, ended.err
    assert attack.says in ended.err
    assert ended.seconds < LIMIT
    assert ended.peak < baseline + ROOM


@pytest.mark.parametrize(
    "name", [name for name in COSTLY if "stride" in name or ("tensors" in name and "complex" not in name)]
)
def test_inspect_ends_in_the_same_way(tmp_path, tmp_path_factory, monkeypatch, baseline, name):
    monkeypatch.chdir(furnish(tmp_path))
    flag, file, *_ = COSTLY[name].make(tmp_path)
    if flag != "--weights":
        pytest.skip("inspect looks into checkpoints")
    ended = run(["inspect", file], tmp_path_factory.mktemp("told") / "err")
    assert (ended.code, ended.is_told) == (3, True), ended.err
    assert ended.seconds < LIMIT
    assert ended.peak < baseline + ROOM


@pytest.mark.parametrize("legacy", [False, True])
def test_what_torch_saves_is_read_as_torch_reads_it(tmp_path, legacy):
    first = torch.nn.Conv2d(3, 4, 3)
    network = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4))
    state = network.state_dict() | {
        "turned": torch.randn(4, 6).t(),
        "every second": torch.randn(10)[2:8:2],
        "shared": first.weight.detach()[1],
        "half": torch.randn(3).half(),
        "brain": torch.randn(3).bfloat16(),
        "none": torch.zeros(0, 3),
        "one": torch.tensor(3.0),
        "bits": torch.ones(3, dtype=torch.bool),
        "turning": torch.randn(3, dtype=torch.complex64),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    beside = {"epoch": 3, "device": torch.device("cpu"), "kind": torch.float32, "raw": b"abc", "size": torch.Size([1])}
    optimiser = torch.optim.Adam(network.parameters()).state_dict()
    content = {"state_dict": state, "optimizer": optimiser, **beside}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    found, wanted = read_weights(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt", weights_only=True)["state_dict"]
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_what_safetensors_saves_is_read_as_it_was(tmp_path):
    state = {
        "odd": torch.tensor([True, False, True]),
        "wide": torch.randn(3, 4, dtype=torch.float64),
        "half": torch.randn(5).half(),
        "brain": torch.randn(3).bfloat16(),
        "none": torch.zeros(0, 2),
        "one": torch.tensor(2.0),
        "whole": torch.arange(3),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "turning": torch.randn(3, dtype=torch.complex64),
    }
    save_file(state, tmp_path / "a.safetensors", {"format": "pt", "told": "ü"})
    found = read_weights(tmp_path / "a.safetensors")
    assert read_metadata(tmp_path / "a.safetensors") == {"format": "pt", "told": "ü"}
    assert set(found) == set(state)
    for name, value in state.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_numbers_that_begin_at_an_odd_place_are_read(tmp_path):
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
    header += b'"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}'
    body = b"\x07" + np.float32(1.5).tobytes()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    found = read_weights(tmp_path / "a.safetensors")
    assert (found["a"].item(), found["b"].item()) == (7, 1.5)


def in_a_fork(work) -> int:
    """The exit code of some work in a child, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_a_file_that_is_cut_short_after_it_was_read_kills_nobody(tmp_path, ending):
    """Were it mapped, the numbers would be fetched only now, and the process killed by SIGBUS."""
    path = tmp_path / f"a{ending}"
    state = {"a": torch.ones(2**20)}
    save_file(state, path) if ending == ".safetensors" else torch.save(state, path)

    def work() -> None:
        tensors = read_weights(path)
        os.truncate(path, 200)
        assert float(tensors["a"].sum()) == 2**20

    assert in_a_fork(work) == 0


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(2**20)}, path)
    content = path.read_bytes()
    pid = os.fork()
    if pid == 0:
        while True:
            os.truncate(path, 2**20)
            path.write_bytes(content)

    def work() -> None:
        refused, until = 0, time.monotonic() + 20
        while refused < 5 and time.monotonic() < until:
            try:
                assert float(read_weights(path)["a"].sum()) >= 0
            except DataError:
                refused += 1
        assert refused == 5

    try:
        assert in_a_fork(work) == 0
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path):
    # The kernel says of these files that they are empty, and gives bytes all the same.
    with pytest.raises(DataError, match="changed while it was read"):
        read_whole(Path("/proc/self/status"))


def test_a_file_larger_than_the_free_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("spotlessnet.core.files.free_bytes", lambda: 1000.0)
    monkeypatch.setattr("spotlessnet.core.files.NOTABLE", 100)
    (tmp_path / "a").write_bytes(b"a" * 501)
    with pytest.raises(ResourceError, match="of memory are free"):
        read_whole(tmp_path / "a")
    os.truncate(tmp_path / "a", 500)
    assert len(read_whole(tmp_path / "a")) == 500


def test_arrays_of_the_other_byte_order_mean_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(furnish(tmp_path))
    x, y = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), np.arange(9) % 3
    ids = np.array([f"person-{i}" for i in range(9)])
    written = []
    for order in "<>":
        out = f"run{order}"
        words = arrays(
            x_train=x.astype(f"{order}f4"), y_train=y.astype(f"{order}i8"), id_train=ids.astype(f"{order}U9"), x_test=x
        )(tmp_path)
        ended = spotless(*command(words)[:-1], out, "--seed", "1", "--accept-damage")  # too few rows to tell
        assert ended.code == 0, ended.err
        written.append((tmp_path / out / "scrubbed.safetensors").read_bytes())
    assert written[0] == written[1]


def test_a_memory_that_is_not_finite_is_refused(tmp_path):
    save_file({"weights": torch.full((3,), float("nan")), "gradient": torch.zeros(3)}, tmp_path / "m.safetensors")
    with pytest.raises(NumericsError, match=r"The statistics' 'weights' in .* is not finite"):
        read_statistics(tmp_path / "m.safetensors")


@pytest.mark.parametrize("value", [10**400, 1 << 40_000, -(10**30)], ids=["long", "longer", "negative"])
def test_a_setting_beyond_all_numbers_is_refused(value):
    with pytest.raises(SettingError, match=r"`fisher.seed` must be a number below 2⁶³"):
        typed(Fisher, "seed", value)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OverflowError(34, "Numerical result out of range"), 5, "error[numerical]: a number became larger"),
        (torch.linalg.LinAlgError("not definite"), 5, "error[numerical]: a matrix could not be taken apart"),  # type: ignore[attr-defined]
        (TypeError("a mistake"), 70, "error[internal]: TypeError: a mistake"),
    ],
)
def test_numbers_that_do_not_come_out_are_told_from_mistakes(monkeypatch, error, code, says):
    def fail(given):
        raise error

    monkeypatch.setattr("spotlessnet.cli.entry._run", fail)
    ended = spotless("list")
    assert ended.code == code
    assert ended.err.startswith(says)


def test_the_traceback_of_own_code_is_shown_on_demand(tmp_path, monkeypatch):
    monkeypatch.chdir(furnish(tmp_path))
    ended = spotless(*command(COSTLY["strange: a data set that raises late"].make(tmp_path)), "--debug")
    assert ended.code == 3
    assert "Traceback (most recent call last)" in ended.err
    assert 'raise KeyError(f"no such image' in ended.err


def test_a_fork_sees_what_it_should(tmp_path, baseline):
    """The instrument itself: a hang, a crash and a gigabyte are told apart from a good end."""
    good = run(["list"], tmp_path / "err")
    assert (good.code, good.is_told) == (0, True)
    bad = run(["no such command"], tmp_path / "err")
    assert (bad.code, bad.is_told) == (2, True)
