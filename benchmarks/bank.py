"""Verdicts from a bank: three networks without the rows, or as many as a sequential audit asks for.

`python benchmarks/bank.py --out results/bank.jsonl`. Settings as in `audit_gauntlet.py`; by default those of its
`CONFIRMED` that were not looked at while the bank was chosen. Every audit has networks of its own.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from spotlessnet.auditing.bank import LOOKS
from spotlessnet.auditing.bank_test import BankTest

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.audit_gauntlet import SHARED, Block
from benchmarks.common import Flags, command, machine, use_threads
from benchmarks.gauntlet_networks import Way, train

AUDITS, NETWORKS, FIRST = 10, 8, 10**9
BLOCKS = ("mnist/perceptron/wrong-60", "blobs/deep/wrong-60", "banking/perceptron/wrong-12")


def candidates(block: Block) -> dict[str, Any]:
    """The bank's originals, and what might have been made of them."""
    count, T = AUDITS * NETWORKS, len(block.rows)
    original = block.fit(count, torch.ones(len(block.x), dtype=torch.bool), FIRST)
    g = torch.Generator().manual_seed(FIRST)
    keep = block.kept.repeat(count, 1)
    for a in range(AUDITS):
        some = block.rows[torch.randperm(T, generator=g)[: max(1, T // 10)]]
        keep[a * NETWORKS : (a + 1) * NETWORKS, some] = True
    seeds = list(range(FIRST + 4 * 10**6, FIRST + 4 * 10**6 + count))
    short = Way(epochs=5, lr=0.05)
    return {
        "original": original,
        "retrained": block.fit(count, block.kept, FIRST + 10**6),
        "fine-tuned": train(block.network, original, block.x, block.y, block.kept.expand(count, -1), seeds, short),
        "a tenth kept": block.fit(count, keep, FIRST + 3 * 10**6),
    }


def judge(name: str) -> dict[str, dict[str, Any]]:
    """Outcomes with three references and in sequence, and what the latter trained."""
    block = Block.of(name)
    found = {who: block.evidence(weights) for who, weights in candidates(block).items()}
    references = block.evidence(block.fit(LOOKS[-1] * AUDITS, block.kept, FIRST + 5 * 10**6))
    table: dict[str, dict[str, Any]] = {}
    for who, group in found.items():
        three, in_turn, spent = Counter[str](), Counter[str](), []
        for a in range(AUDITS):
            ours = torch.arange(a * NETWORKS, (a + 1) * NETWORKS)
            others = found["original"].select((ours + NETWORKS) % (AUDITS * NETWORKS))
            candidate, file = group.select(ours), group.select(ours[:1])
            first = a * LOOKS[-1]
            few = references.select(torch.arange(first, first + LOOKS[0]))
            test = BankTest(seed=a, permutations=999)
            three[test.judge(others, candidate, few, delivered=file).outcome] += 1
            test = BankTest(seed=a, permutations=999, looks=len(LOOKS))
            for look in LOOKS:
                some = references.select(torch.arange(first, first + look))
                verdict = test.judge(others, candidate, some, delivered=file)
                if verdict.outcome != "inconclusive":
                    break
            in_turn[verdict.outcome] += 1
            spent.append(look)
        table[who] = {"three": three, "sequential": in_turn, "trainings": spent}
    return table


def main() -> None:
    use_threads()
    flags = Flags(__doc__).out()
    flags.add_argument("--blocks", nargs="+", default=list(BLOCKS), help="data/network/rows")
    given = flags.parse_args()
    for name in given.blocks:
        began = time.perf_counter()
        if name.split("/")[0] in ("mnist", "banking") and not SHARED.exists():
            print(f"{name}: the data are not here")
            continue
        for who, row in judge(name).items():
            mean = sum(row["trainings"]) / AUDITS
            print(f"{name:28s} {who:13s} three {dict(row['three'])} sequential {dict(row['sequential'])} {mean:.1f}")
            about = {"block": name, "candidate": who, "audits": AUDITS, "networks": NETWORKS, **row}
            about |= {"seconds": round(time.perf_counter() - began), "command": command("bank"), "machine": machine()}
            if given.out:
                with given.out.open("a") as out:
                    out.write(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
