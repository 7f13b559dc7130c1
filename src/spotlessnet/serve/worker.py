"""The worker process: reads one piece of work from stdin, does it with the library, and answers in lines of JSON.

No id leaves it but to the folder `private` of the result: what is said and what went wrong is cleaned of the ids first.
"""

import contextlib
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotlessnet.core.data import Data
    from spotlessnet.requests.planning import Plan
    from spotlessnet.requests.recorded import Recorded

WATCH = 1.0
"""Seconds between two looks at whether the desk still lives."""

GENTLE = 10
"""How far work stands back: whoever sends a request meanwhile is answered first."""

METHODS = (None, "retrain", "short-retrain", "finetune")
"""What a plan compares; `None` is what the library would choose."""


def answer(**told: Any) -> None:
    """One line for the desk."""
    print(json.dumps(told), file=sys.__stdout__, flush=True)


def clean(text: str, ids: Sequence[str]) -> str:
    """A text in which no id stands."""
    for one in sorted(ids, key=len, reverse=True):
        text = text.replace(one, "[id]")
    return text


def read(told: Mapping[str, Any]) -> dict[str, Any]:
    """Who is in a training, and how many examples each has."""
    base = Path(told["base"])
    if told["kind"] == "forgettable":
        from spotlessnet.serve.forgettable_work import read_state

        return read_state(told["settings"], base)
    from spotlessnet.core.data import spelled
    from spotlessnet.core.errors import NeedError
    from spotlessnet.requests.recorded import recorded

    run = recorded(base)
    column = run.record.id_column
    if column is None:
        raise NeedError(
            "A training that serves a desk must know whose each row is, but this one was recorded without ids. Record "
            "it again with ids: data of three parts `(x, y, ids)`, or `id_column`."
        )
    found = Counter(spelled(run.data.column(column)))
    network = run.record.digests[run.record.weights]
    return {"ids": sorted(found.items()), "network": network, "folder": str(base.resolve())}


def _left(told: Mapping[str, Any]) -> "Recorded":
    """The recorded training with the rows that are left: those of people who went before are not read."""
    from spotlessnet.core.data import spelled
    from spotlessnet.requests.loading import rows_of
    from spotlessnet.requests.recorded import recorded
    from spotlessnet.serve.sealing import digest_under

    run = recorded(Path(told["base"]))
    column = run.record.id_column
    assert column is not None
    gone = set(told["gone"])
    key = bytes.fromhex(told["key"])
    rows: Data = rows_of(run.case, "data")
    names = spelled(rows.column(column))
    kept = [i for i, one in enumerate(names) if digest_under(key, one).hex() not in gone]
    return recorded(Path(told["base"]), rows.select(kept))


def plan(told: Mapping[str, Any]) -> dict[str, Any]:
    """What several methods cost beside retraining, and the audit of the chosen one; without those that cannot serve.

    All at one speed of the machine, which is measured once: figures that stand side by side can be compared.
    """
    if told["kind"] == "forgettable":
        return {"method": "exact downdate", "seconds": None, "retraining": None, "audit": None, "methods": {}}
    from spotlessnet.core.errors import SpotlessError
    from spotlessnet.requests.audits import Audit, audit_seconds
    from spotlessnet.requests.methods import described

    run = _left(told)
    chosen = _planned(run, told, told["method"])
    name = described(chosen.scrub)[0]
    found = {name: _known(chosen.cost.seconds)}
    for method in METHODS:
        with contextlib.suppress(SpotlessError):
            if method not in found and method != told["method"]:
                made = _planned(run, told, method)
                seconds = made.cost.seconds * chosen.cost.epoch / made.cost.epoch
                found.setdefault(described(made.scrub)[0], _known(seconds))
    return {
        "method": name,
        "seconds": found[name],
        "retraining": _known(chosen.cost.retraining),
        "audit": _known(audit_seconds(chosen, Audit(told["seeds"]))[0]) if told["seeds"] else None,
        "methods": found,
    }


def _known(seconds: float) -> float | None:
    """Seconds as JSON has them."""
    return seconds if math.isfinite(seconds) else None


def _planned(run: "Recorded", told: Mapping[str, Any], method: str | None) -> "Plan":
    from spotlessnet.core.split import ids as by_id
    from spotlessnet.requests.case import Case
    from spotlessnet.requests.planning import plan_of

    column = run.record.id_column
    assert column is not None
    fields = {"training": run.folder, "data": run.given, "forget": by_id(told["ids"], column=column), "method": method}
    return plan_of(Case.of(fields))


def forget(told: Mapping[str, Any]) -> dict[str, Any]:
    """The new version, audited where that was asked for; a finished one is given back."""
    out = Path(told["out"])
    out.parent.mkdir(parents=True, exist_ok=True)
    if told["kind"] == "forgettable":
        from spotlessnet.serve.forgettable_work import downdate

        return downdate(told["settings"], Path(told["base"]), out, told["ids"])
    from spotlessnet.requests.audits import REPORT, Audit
    from spotlessnet.requests.folder import RECEIPT, SCRUBBED
    from spotlessnet.requests.unlearning import unlearn

    run = _left(told)
    served = unlearn(
        run,
        forget=told["ids"],
        ids=run.record.id_column,
        method=told["method"] or "auto",
        test=told["settings"].get("test"),
        audit=Audit(told["seeds"]) if told["seeds"] else False,
        out=out,
        resume=out.exists(),
        progress=False,
        say=lambda line: answer(say=clean(line, told["ids"])),
    )
    body = served.receipt["predicate"]
    verdict: dict[str, Any] = next((figure for figure in body["audit"] if "verdict" in figure), {})
    subjects = {one["name"]: one["digest"]["sha256"] for one in served.receipt["subject"]}
    return {
        "verdict": verdict.get("verdict"),
        "reason": clean(verdict.get("reason", ""), told["ids"]),
        "method": body["method"],
        "network": subjects[SCRUBBED],
        "receipt": hashlib.sha256((out / RECEIPT).read_bytes()).hexdigest(),
        "report": (out / REPORT[0]).is_file(),
    }


def replay(told: Mapping[str, Any]) -> dict[str, Any]:
    """The network that comes out when the work is done again from a copy of the base; nothing of it stays."""
    import shutil

    from spotlessnet.requests.folder import RECEIPT
    from spotlessnet.requests.lineage import SUFFIX
    from spotlessnet.serve.destroying import destroy_folder
    from spotlessnet.serve.engine import REPLAY
    from spotlessnet.store.receipts import read_receipt

    noise = read_receipt(Path(told["out"]) / RECEIPT)["predicate"].get("noise", {})
    if str(noise.get("kind", "")).startswith("secret"):
        return {"reason": "secret noise was added, whose key was not kept: nobody can draw it again"}
    if told["kind"] == "forgettable":
        return {"reason": "no two files of a downdate are alike; its certificate bounds the distance to solving anew"}
    scratch = Path(told["scratch"])
    # Beside the base, for a record names its code from there.
    copy = Path(told["base"] + REPLAY)
    for folder in (scratch, copy):  # of one that was killed
        destroy_folder(folder)
    try:
        # Without the note of whom the base has served: the copy serves nobody.
        shutil.copytree(told["base"], copy, ignore=shutil.ignore_patterns(f"*{SUFFIX}"))
        return {"network": forget({**told, "base": str(copy), "out": str(scratch), "seeds": 0})["network"]}
    finally:
        for folder in (scratch, copy):
            destroy_folder(folder)


def destroy(told: Mapping[str, Any]) -> dict[str, Any]:
    """Destroy the version that was replaced, and the private part of the new one where that is the policy."""
    from spotlessnet.serve.destroying import destroy_folder, destroy_private, destroy_version
    from spotlessnet.serve.engine import REPLAY

    for one in ("out", "base"):
        destroy_folder(Path(told[one] + REPLAY))  # of a replay that was killed
    files = destroy_version(Path(told["base"]))
    if told["private"]:
        files += destroy_private(Path(told["out"]))
    return {"files": files}


def withdraw(told: Mapping[str, Any]) -> dict[str, Any]:
    """Destroy a result that was sent back."""
    from spotlessnet.serve.destroying import destroy_folder, withdraw_result
    from spotlessnet.serve.engine import REPLAY

    for one in ("out", "base"):
        destroy_folder(Path(told[one] + REPLAY))
    withdraw_result(Path(told["base"]), Path(told["out"]))
    return {}


TASKS = {
    "read": read,
    "plan": plan,
    "forget": forget,
    "replay": replay,
    "destroy": destroy,
    "withdraw": withdraw,
}


def main() -> int:
    """Do one piece of work, and end with the exit code of its error."""
    os.nice(GENTLE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    told = json.loads(sys.stdin.read())
    ids = told.get("ids", [])
    try:
        # What a person's own code prints must not stand between the lines of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            done = TASKS[sys.argv[1]](told)
        answer(done=done)
        return 0
    except Exception as error:
        code, text = _meaning(error)
        answer(error=clean(text, ids), code=code)
        return code


def _meaning(error: Exception) -> tuple[int, str]:
    """Exit code and line, as the command has them."""
    from spotlessnet.core.errors import SpotlessError

    if isinstance(error, SpotlessError):
        return error.exit_code, str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return 4, "The memory of this machine did not suffice."
    if isinstance(error, OSError):
        return 4, f"{error.filename or 'the system'}: {error.strerror or error}. Check disk and permissions."
    return 70, f"{type(error).__name__}: {error}"


def _end_with(parent: int) -> None:
    """End when the desk was killed: whoever starts it again gives the work out anew."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(137)


if __name__ == "__main__":
    sys.exit(main())
