"""Real networks, audited: what `real_faces.py` and `real_text.py` share.

For every seed one original, its retrained partner, another retrained network of a seed of its own, and what each method
makes of the original; then the library's equivalence test over all seeds. Rows are appended as they are known, seed by
seed, so that a run that must end early has whole seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import spotlessnet as sn
from spotlessnet.auditing.seeds import scrub_seed
from spotlessnet.core.answers import error_rate
from spotlessnet.core.progress import Meter
from spotlessnet.readouts.error import Error
from spotlessnet.training.fit import train

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, command
from benchmarks.real_verdicts import ORIGINAL, OTHER, RETRAINED, Seen

APART = 100
"""Between the seed of a pair and that of the other retrained network."""

CHOOSING = 900
"""The seed of the choice; none of the seeds that are reported."""


@dataclass
class Report:
    """Appends rows to a file and to the log, and knows how late it is."""

    out: Path | None
    about: dict[str, Any]
    stop: float
    began: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    def say(self, what: str, **row: Any) -> None:
        """One row, on the disk before anything else is done."""
        known = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        line = json.dumps({"what": what, **self.about, **known, "elapsed": round(self.elapsed, 1)})
        print(line, flush=True)
        if self.out is not None:
            with self.out.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")


@dataclass
class Case:
    """One request to one network, with the methods that serve it, and the networks made so far."""

    name: str
    split: sn.Split
    methods: dict[str, sn.Scrub]
    networks: dict[str, list[sn.Trained]] = field(default_factory=dict)

    def keep(self, name: str, network: sn.Trained) -> None:
        """One more network of this name."""
        self.networks.setdefault(name, []).append(network)


def run(
    start: Callable[[float], sn.Trained],
    rates: Sequence[float],
    cases: list[Case],
    report: Report,
    seeds: list[int],
    *,
    judge_now: bool = True,
    whole: bool = True,
) -> None:
    """Choose the rate, then all seeds, or as many as fit into the time, and the verdicts at the end.

    **Arguments:**

    - `whole`: not of a process that does some of the seeds beside others: plans and the request are not of every one.
    """
    begun = start(chosen(start, rates, cases[0].split.whole, report))
    for case in cases if whole else ():
        plan(begun, case, report)
    took = 0.0
    done: list[int] = []
    for seed in seeds:
        # A seed takes as long as the one before, or less: the first also pays for warming up.
        if done and report.elapsed + 1.1 * took > report.stop:
            break
        before = report.elapsed
        one_seed(begun, cases, report, seed)
        took = report.elapsed - before
        done.append(seed)
    if len(done) > 1 or not judge_now:  # with one there is no spread to judge by
        judge(cases, report, done, now=judge_now)
    for case in cases if whole else ():
        if report.elapsed < report.stop:
            served(case.networks[ORIGINAL][0], case, report, done[0])
    report.say("end", pairs=len(done), asked=len(seeds))


def chosen(start: Callable[[float], sn.Trained], rates: Sequence[float], data: sn.Data, report: Report) -> float:
    """The rate that errs least on a tenth of the training rows, at a seed that is used for nothing else."""
    if len(rates) == 1:
        return rates[0]
    mixed = torch.randperm(len(data), generator=torch.Generator().manual_seed(CHOOSING))
    held, rest = data.select(mixed[: len(data) // 10]), data.select(mixed[len(data) // 10 :])
    errors = {}
    for rate in rates:
        begun = start(rate)
        with Meter(begun.device) as meter:
            network = train(begun, rest, seed=CHOOSING)
        errors[rate] = error_rate(network, held)
        report.say("choosing", seed=CHOOSING, lr=rate, error_held_out=errors[rate], seconds=meter.seconds)
    return min(errors, key=lambda rate: errors[rate])


def one_seed(begun: sn.Trained, cases: list[Case], report: Report, seed: int) -> None:
    """One original, and for every request its partners and what the methods make of it.

    Partners are not coupled to their original: batches from which forgotten rows are left out have all sizes, and for
    each new one a GPU may choose and compile its convolutions anew, for seconds. So more chance lies between them.
    """
    with Meter(begun.device) as meter:
        original = train(begun, cases[0].split.whole, seed=seed)
    for case in cases:
        case.keep(ORIGINAL, original)
        tell(report, case, ORIGINAL, seed, original, meter.seconds)
        for name, own in ((RETRAINED, seed), (OTHER, APART + seed)):
            with Meter(begun.device) as took:
                network = train(begun, case.split.retain, seed=own)
            case.keep(name, network)
            tell(report, case, name, seed, network, took.seconds)
        for name, scrub in list(case.methods.items()):
            try:
                found = scrub_seed(scrub, original, case.split, seed)
            except Exception as error:  # a row says so; what the others take an hour for must not be lost
                report.say(
                    "failed", request=case.name, method=name, seed=seed, error=f"{type(error).__name__}: {error}"
                )
                del case.methods[name]
                continue
            case.keep(name, found.network)
            share = found.gaussian.diagnostics.get("share_of_retraining")
            tell(report, case, name, seed, found.network, found.meter.seconds, measured_share=share)


def tell(report: Report, case: Case, method: str, seed: int, network: sn.Trained, seconds: float, **more: Any) -> None:
    """Errors and seconds of one network."""
    errors = {f"error_{part}": float(Error(part)(network, case.split)) for part in ("forget", "retain", "test")}
    report.say("network", request=case.name, method=method, seed=seed, seconds=seconds, **errors, **more)


def served(original: sn.Trained, case: Case, report: Report, seed: int) -> None:
    """The same request through the front door, with nothing named: which method is the default, and what it takes."""
    rows, where = case.split.forgotten.nonzero().squeeze(1).tolist(), original.device.type
    try:
        with Meter(original.device) as meter:
            done = sn.unlearn(
                original, case.split.whole, forget=rows, test=case.split.test, device=where, progress=False
            )
    except Exception as error:  # also a network that came out much worse, which is not given out
        report.say("request", request=case.name, seed=seed, error=f"{type(error).__name__}: {error}")
        return
    assert done.plan is not None
    report.say("request", request=case.name, seed=seed, method=done.plan.method, seconds=meter.seconds)


def plan(begun: sn.Trained, case: Case, report: Report) -> None:
    """What methods cost as the package counts it, in retrainings, before any work."""
    whole = sn.Retrain().cost(begun, case.split).usual
    asked = {**case.methods, "NTK": sn.NTK(), "Newton": sn.Newton()}
    for name, scrub in asked.items():
        try:
            usual, most = (getattr(scrub.cost(begun, case.split), kind) / whole for kind in ("usual", "most"))
        except Exception as error:  # nothing was done yet, and nothing is lost
            report.say("plan", request=case.name, method=name, error=f"{type(error).__name__}: {error}")
            continue
        report.say("plan", request=case.name, method=name, usual_share=usual, most_share=most)


def judge(cases: list[Case], report: Report, seeds: list[int], *, now: bool = True) -> None:
    """Verdicts and attacks on all methods; what was seen is kept first, so that it can be judged again elsewhere."""
    for at, case in enumerate(cases):
        whole = {name: group for name, group in case.networks.items() if len(group) == len(seeds)}
        seen = Seen.of(case.name, whole, case.split, seeds)
        if report.out is not None:
            seen.save(report.out.with_suffix(f".seen-{at}.pt"))
        for row in seen.verdicts() if now else ():
            report.say("verdict", **row)


def flags_of(doc: str | None) -> Flags:
    """Those of both scripts."""
    parser = Flags(doc).out().device().seeds(range(10, 18))  # numbers below ten were seen while batches were sized
    parser.add_argument("--packed", type=Path, required=True, help="the file of the data")
    parser.add_argument("--epochs", type=int, help="of a training, where it shall not be the usual number")
    parser.add_argument("--stop", type=float, default=math.inf, help="seconds after which no seed begins")
    parser.add_argument("--lr", type=float, help="chosen by an earlier run")
    parser.add_argument("--cases", nargs="+", help="requests by name, all unless said")
    parser.add_argument("--part", action="store_true", help="some of the seeds, beside other processes: judged later")
    parser.add_argument("--judge-later", action="store_true", help="keep what was seen for `real_verdicts.py`")
    parser.add_argument("--tiny", action="store_true", help="few rows and epochs, to see on a CPU that all of it runs")
    return parser


def about(script: str, device: torch.device, **more: Any) -> dict[str, Any]:
    """What goes into every row: network and data, machine, versions, the command without folders."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return {
        **more,
        "device": accelerator(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "command": command(script, words),
    }


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for; a tiny run needs three pairs at most."""
    given = parser.parse_args()
    if given.tiny:
        given.seeds = given.seeds[:2]
    given.judge_later |= given.part
    return given
