"""Which files a request and an NTK step visit, in order: the two pictures of `docs/architecture.md`.

python benchmarks/modules_visited.py --docs docs/architecture.md

A file counts as visited when one of its functions runs. Everything is done once before anything is counted, so that
imports do not count. How files are counted is told in `benchmarks/request_path.py`.
"""

import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from pathlib import Path

import torch

import spotlessnet as sn

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place
from benchmarks.request_path import visited, way_of_unlearn

PLACES = {
    name: Place(f"<!-- {name}: written by benchmarks/modules_visited.py -->", f"<!-- end of {name} -->")
    for name in ("request", "step")
}


@cache
def problem() -> tuple[sn.Trained, torch.Tensor, torch.Tensor]:
    """A linear classifier of separable points, trained."""
    torch.manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(120, 4) + 3 * torch.nn.functional.one_hot(y, 4)
    recipe = sn.Recipe(epochs=5, lr=0.1, weight_decay=1e-2)
    network = torch.nn.Linear(4, 3)
    return sn.fit(sn.Trained.of(network, init=network, recipe=recipe), sn.Data.of((x, y))), x, y


def step() -> object:
    """One NTK step."""
    trained, x, y = problem()
    return sn.NTK()(trained, sn.rows([1, 5, 9])(sn.Data.of((x, y))))


def picture(files: Iterable[str]) -> str:
    """Markdown: a chart of rooms in the order in which they are entered, with the files numbered as they come."""
    numbered = [(i, *file.rpartition("/")[::2]) for i, file in enumerate(files, start=1)]
    lines, before = ["```mermaid", "flowchart TD"], ""
    for at, (room, group) in enumerate(groupby(numbered, key=lambda one: one[1])):
        parts = [f"{room or 'spotlessnet'}/", *(f"{i:>2} {name}" for i, _, name in group)]
        lines.append(f'  {before + " --> " if before else ""}r{at}["{"<br/>".join(parts)}"]')
        before = f"r{at}"
    return "\n".join([*lines, "```"])


def way_of_the_request() -> str:
    """Markdown: the files between asking and receipt, those of the method among them."""
    files = way_of_unlearn()
    return f"{len(files)} files:\n\n{picture(files)}"


def way_of_the_step() -> str:
    """Markdown: the files of one NTK step."""
    step()
    files = visited(step)
    return f"{len(files)} files:\n\n{picture(files)}"


WAYS: dict[str, Callable[[], str]] = {"request": way_of_the_request, "step": way_of_the_step}


def flags() -> Flags:
    return Flags(__doc__).page()


def main() -> None:
    given = flags().parse_args()
    for name, way in WAYS.items():
        made = way()
        print(made)
        if given.docs is not None:
            PLACES[name].write(given.docs, made)


if __name__ == "__main__":
    main()
