"""Tasks over a Ray cluster: several cores, GPUs or machines, with the same results (extra `ray`).

A worker uses as many threads as the process that asks, for sums over threads are rounded by their number. What a
network and its rows are made of travels as bytes, together with modules that a case named by their files.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, ResourceError, SpotlessError
from spotlessnet.core.trained import Trained

if TYPE_CHECKING:
    from spotlessnet.training.many import Finished, Task

CASE = "spotless_case_"
"""How modules are called that a case names by their file: no worker can import them by that name."""


def check_installed() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise NeedError(
            f'`workers="ray"` needs Ray ({error}). Install it: `pip install spotlessnet[ray]`, or train in turn.'
        ) from error
    return ray


def over_ray(tasks: "Sequence[Task]", data: Data) -> "Iterator[tuple[int, Finished]]":
    """Number and result of each task, as they are finished."""
    ray = check_installed()
    if not ray.is_initialized():  # a local cluster, if none is found; it ends with this process
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody else needs to know that somebody forgets
        ray.init(include_dashboard=False, log_to_driver=False)
    pending: dict[Any, int] = {}
    try:
        send = ray.remote(**_resources(ray, tasks[0].begun[0]))(_work).remote
        rows = ray.put(_packed(ray, data))
        sent: dict[int, Any] = {}
        for i, task in enumerate(tasks):
            for one in task.begun:
                if id(one) not in sent:
                    sent[id(one)] = ray.put(_packed(ray, _moved(one, torch.device("cpu"))))
            begun = [sent[id(one)] for one in task.begun]
            where = str(task.begun[0].device.type), torch.get_num_threads(), _paths()
            pending[send(_packed(ray, replace(task, begun=())), rows, where, *begun)] = i
        while pending:
            [done], _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(done), _received(ray, done)
    finally:
        for left in pending:
            ray.cancel(left, force=True)


def _resources(ray: Any, network: Trained) -> dict[str, Any]:
    """A GPU for each task where the network is on one; else as many cores as it has threads, if a machine has them."""
    if network.device.type == "cuda":
        return {"num_gpus": 1, "num_cpus": 1}
    most = max(node["Resources"].get("CPU", 1.0) for node in ray.nodes() if node["Alive"])
    return {"num_cpus": min(float(torch.get_num_threads()), most)}


def _packed(ray: Any, value: Any) -> bytes:
    """As bytes, with the source of modules that have no name by which a worker could import them."""
    named = [module for name, module in list(sys.modules.items()) if name.startswith(CASE)]
    for module in named:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        return ray.cloudpickle.dumps(value)
    finally:
        for module in named:
            ray.cloudpickle.unregister_pickle_by_value(module)


def _paths() -> list[str]:
    """Where modules are looked for here, and where those lie that a case named by their files."""
    files = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith(CASE)]
    return [*sys.path, *(str(Path(file).parent) for file in files if file)]


def _work(
    task: bytes, rows: bytes, where: tuple[str, int, list[str]], *begun: bytes
) -> "tuple[Finished | SpotlessError, list[str]]":
    """One task on a worker: its result or what it raised, and what it warned of."""
    device, threads, paths = where
    sys.path += [path for path in paths if path not in sys.path]
    torch.set_num_threads(threads)
    import ray

    load = ray.cloudpickle.loads
    networks = tuple(_moved(load(one), torch.device(device)) for one in begun)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            made: Finished | SpotlessError = replace(load(task), begun=networks).run(load(rows))
        except SpotlessError as error:
            made = error
    return made, [str(one.message) for one in heard if issubclass(one.category, UserWarning)]


def _received(ray: Any, done: Any) -> "Finished":
    """What a worker answered; whatever it raised or warned of is raised and said here."""
    try:
        made, heard = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", error)
        line = (str(cause).strip().splitlines() or [""])[0][:160]
        raise DataError(
            f"A training over Ray must run as it does here, but a worker met {type(cause).__name__}: {line}. Workers "
            "need the same packages and modules; try it in turn first."
        ) from error
    except ray.exceptions.RayError as error:
        raise ResourceError(f"A worker of the Ray cluster was lost ({type(error).__name__}). Run it again.") from error
    for text in heard:
        warnings.warn(text, stacklevel=4)
    if isinstance(made, SpotlessError):
        raise made
    return made


def _moved(network: Trained, device: torch.device) -> Trained:
    """The network on another device: a GPU's number here is not its number there."""
    if network.device == device:
        return network

    def move(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.to(device)

    buffers = network.init_buffers
    return replace(
        network,
        model=network.module().to(device),
        weights=network.weights.to(device),
        init=move(network.init),
        init_buffers=None if buffers is None else {name: value.to(device) for name, value in buffers.items()},
    )
