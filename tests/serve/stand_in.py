"""An engine that trains nothing: networks are files of names, so that a test of the desk takes milliseconds."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spotlessnet.core.files import write_whole
from spotlessnet.serve.engine import Work

NETWORK = "network.json"


def write_training(folder: Path, names: list[str]) -> Path:
    """A training that saw these people."""
    folder.mkdir(parents=True)
    (folder / NETWORK).write_text(json.dumps(sorted(names)))
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class StandIn:
    """Forgets by leaving names out."""

    def __init__(self, verdict: str = "forgotten") -> None:
        self.verdict = verdict

    def read(self, kind: str, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        names = Counter(json.loads((folder / NETWORK).read_text()))
        return {"ids": sorted(names.items()), "network": digest(folder / NETWORK), "folder": str(folder)}

    def plan(self, work: Work) -> dict[str, Any]:
        return {
            "method": work.method or "short-retrain",
            "seconds": 1.0,
            "retraining": 600.0,
            "audit": 9000.0 if work.seeds else None,
            "methods": {work.method or "short-retrain": 1.0, "retrain": 600.0, "finetune": None},
        }

    def verdict_of(self, job: str) -> str:
        """What the audit of a job says: the same whenever it is asked."""
        return self.verdict

    def make(self, work: Work) -> None:
        """The new network, from the one before."""
        base, out = Path(work.base), Path(work.out)
        known = json.loads((base / NETWORK).read_text())
        assert set(work.ids) <= set(known), "asked to forget whom the network does not know"
        write_whole(out / NETWORK, json.dumps([one for one in known if one not in work.ids]).encode())

    def forget(self, work: Work, say: Callable[[str], None]) -> dict[str, Any]:
        out = Path(work.out)
        say("plan    leave names out")
        assert work.ids, "a job must have somebody to forget"
        out.mkdir(parents=True, exist_ok=True)
        if not (out / NETWORK).exists():
            self.make(work)
        (out / "report.html").write_text("<!doctype html><title>report</title><p>what is left</p>")
        network = digest(out / NETWORK)
        return {
            "verdict": self.verdict_of(out.name) if work.seeds else None,
            "reason": "nothing is left",
            "method": work.method or "short-retrain",
            "network": network,
            "receipt": hashlib.sha256(network.encode()).hexdigest(),
            "report": True,
        }

    def replay(self, work: Work, scratch: Path) -> dict[str, Any]:
        known = json.loads((Path(work.base) / NETWORK).read_text())
        left = json.dumps([one for one in known if one not in work.ids]).encode()
        return {"network": hashlib.sha256(left).hexdigest()}

    def destroy(self, base: Path, out: Path, *, private: bool) -> list[str]:
        assert (out / NETWORK).exists(), "nothing is destroyed before there is something new"
        found = [base / NETWORK] if (base / NETWORK).exists() else []
        for one in found:
            os.unlink(one)
        return [one.name for one in found]

    def withdraw(self, base: Path, out: Path) -> None:
        assert (base / NETWORK).exists()
        (out / NETWORK).unlink(missing_ok=True)
