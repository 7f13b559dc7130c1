"""Banking77 behind a frozen MiniLM on a CPU: accuracy beside logistic regression, and 1,000 requests in a row.

    python benchmarks/forgettable_text.py --data folder --out results/forgettable-text.jsonl

`folder` holds `banking77.train.csv` and `banking77.test.csv`. Texts are embedded by the gallery's example.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import spotlessnet as sn
from spotlessnet.core.data import Data

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, use_threads

ROOT = Path(__file__).parents[1]
WIDTH = 384


def gallery() -> Any:
    """The example, which is no package."""
    spec = importlib.util.spec_from_file_location("forgettable_text", ROOT / "docs" / "gallery" / "forgettable_text.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embedded(folder: Path, kept: Path | None) -> dict[str, Tensor]:
    """Embeddings and labels, read where they were kept."""
    if kept is not None and kept.exists():
        found: dict[str, Tensor] = torch.load(kept)
        return found
    example = gallery()
    (texts, intents), (test, wanted) = (example.read(folder / f"banking77.{part}.csv") for part in ("train", "test"))
    names, parts = sorted(set(intents)), example.encoder()
    found = {"x": example.embedded(*parts, texts, layers=3), "xt": example.embedded(*parts, test, layers=3)}
    found |= {k: torch.tensor([names.index(i) for i in v]) for k, v in (("y", intents), ("yt", wanted))}
    if kept is not None:
        torch.save(found, kept)
    return found


def fitted(x: Tensor, y: Tensor, core: Tensor, user: Tensor, **settings: Any) -> sn.ForgettableModel:
    """A tenth of the messages is the core."""
    return sn.fit_forgettable(
        torch.nn.Identity(), core=(x[core], y[core]), user=(x[user], y[user]), ids=user.tolist(),
        classes=int(y.max()) + 1, batch_size=1024, **settings,
    )  # fmt: skip


def sequence(
    model: sn.ForgettableModel, x: Tensor, y: Tensor, core: Tensor, user: Tensor, count: int
) -> dict[str, Any]:
    """Requests of 1 to 8 messages in a row: some go, some come, some get another label; then against solving anew."""
    draw = torch.Generator().manual_seed(4)
    inside, outside, wall, cpu = user.tolist(), list[int](), [], []
    y, kinds = y.clone(), {"forget": 0, "add": 0, "relabel": 0}
    for _ in range(count):
        size, chance = int(torch.randint(1, 9, (), generator=draw)), float(torch.rand((), generator=draw))
        kind = "relabel" if chance < 0.1 else "add" if chance < 0.45 and len(outside) > size else "forget"
        source = outside if kind == "add" else inside
        picked = {int(i) for i in torch.randperm(len(source), generator=draw)[:size]}
        rows = [source[i] for i in picked]
        if kind == "relabel":
            y[rows] = torch.randint(0, int(y.max()) + 1, (len(rows),), generator=draw)
        else:
            source[:] = [row for i, row in enumerate(source) if i not in picked]
            (inside if kind == "add" else outside).extend(rows)
        began, before = time.perf_counter(), time.process_time()
        if kind == "add":
            model.add(x[rows], y[rows], ids=rows)
        elif kind == "relabel":
            model.relabel(rows, y[rows])
        else:
            model.forget(rows)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - before)
        kinds[kind] += 1
    anew = model.solved_anew(Data.of((x[inside], y[inside])), core=Data.of((x[core], y[core])))
    part = max(1, count // 10)
    return {
        "requests": count, "kinds": kinds,
        "refactored": sum(r.refactored for r in model.requests[-count:]),
        "cpu_seconds_first_tenth": median(cpu[:part]), "cpu_seconds_last_tenth": median(cpu[-part:]),
        "seconds_first_tenth": median(wall[:part]), "seconds_last_tenth": median(wall[-part:]),
        "seconds_median": median(wall), "cpu_seconds_median": median(cpu),
        "moments_equal": torch.equal(anew.moments.gram, model.moments.gram),
        "weights_equal": torch.equal(anew.weights, model.weights),
        "weights_gap": float((anew.weights - model.weights).norm() / anew.weights.norm()),
        "inverse_gap": float((anew.inverse - model.inverse).norm() / anew.inverse.norm()),
        "left": len(model),
    }  # fmt: skip


def flags() -> Flags:
    parser = Flags(__doc__).data("the folder with the Banking77 files", required=True).out(required=True)
    parser.add_argument("--kept", type=Path, help="a file for the embeddings, written once and read again")
    parser.add_argument("--length", type=int, default=1000, help="requests in a row")
    return parser


def main() -> None:
    from sklearn.linear_model import LogisticRegression

    args = flags().parse_args()
    use_threads()
    began, before = time.perf_counter(), time.process_time()
    found = embedded(args.data, args.kept)
    reading = {"seconds_embedding": time.perf_counter() - began, "cpu_seconds_embedding": time.process_time() - before}
    x, y, x_test, y_test = (found[k] for k in ("x", "y", "xt", "yt"))
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    core, user = mixed[: len(y) // 10], mixed[len(y) // 10 :]
    out, where = [], f"CPU, {torch.get_num_threads()} threads, shared"
    near = gallery().Near(x[core, -WIDTH:], y[core], int(y.max()) + 1)
    choices = {
        "last layer": (1, None),
        "last layer and nearness to core means": (1, near),
        "last 3 layers": (3, None),
    }
    for name, (layers, features) in choices.items():
        here, there = x[:, -WIDTH * layers :], x_test[:, -WIDTH * layers :]
        began = time.process_time()
        model = fitted(here, y, core, user, **({} if features is None else {"features": features}))
        took = time.process_time() - began
        accuracy = 100 * float((model.predict(there).argmax(dim=1) == y_test).double().mean())
        out.append({
            "what": "forgettable", "data": "banking77", "layers": layers, "features": len(model.weights),
            "model": f"forgettable, frozen MiniLM, {name}, 10 % core", "accuracy": accuracy, "seconds": took,
            "where": where, "command": "python benchmarks/forgettable_text.py " + " ".join(sys.argv[1:]), **reading,
            **sequence(model, here, y, core, user, args.length if layers == 1 else args.length // 10),
        })  # fmt: skip
        print(json.dumps(out[-1]), flush=True)
    a, b = (torch.nn.functional.normalize(v[:, -WIDTH:], dim=1).numpy() for v in (x, x_test))
    began = time.process_time()
    score = LogisticRegression(C=30.0, max_iter=300).fit(a, y.numpy()).score(b, y_test.numpy())
    out.append({
        "what": "logistic regression", "data": "banking77", "accuracy": 100 * score, "where": where,
        "model": "logistic regression on the same embeddings, all data", "seconds": time.process_time() - began,
    })  # fmt: skip
    print(json.dumps(out[-1]), flush=True)
    with args.out.open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in out)


if __name__ == "__main__":
    main()
