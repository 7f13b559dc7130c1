"""Doing a request again from what its receipt names, and comparing the networks byte for byte."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.core.files import Look
from spotlessnet.requests.case import Case, as_flag, inputs_of
from spotlessnet.requests.folder import REQUEST, SCRUBBED, Private
from spotlessnet.requests.loading import described_inputs
from spotlessnet.requests.planning import plan_of
from spotlessnet.requests.serving import request_of, serve
from spotlessnet.requests.verifying import verify_request
from spotlessnet.store.receipts import environment, plain, read_receipt
from spotlessnet.store.schema import is_refusal

SAME, OTHER, UNTOLD = "the same", "another", "cannot be told"

ONCE = ("statistics", "fold_models", "training")
"""Inputs that serve one request alone, and are used up or destroyed by it."""


@dataclass(frozen=True)
class Replayed:
    """What doing a request again showed.

    **Arguments:**

    - `outcome`: `SAME`, `OTHER` or `UNTOLD`.
    - `reason`: why, in a sentence.
    - `told`, `found`: the SHA-256 of the network, as the receipt tells it and as it came out; none where nothing
      was run.
    """

    outcome: str
    reason: str
    told: str | None = None
    found: str | None = None


def replay(path: Path, say: Callable[[str], None] = lambda line: None) -> Replayed:
    """Serve the request of a receipt again, write nothing, and compare the network that comes out.

    The receipt is verified first. What was asked stands in the folder `private` beside it, as long as that is kept; the
    inputs must be those that the receipt was written for, the forgotten rows among them.

    **Arguments:**

    - `say`: called with each line of the plan.
    """
    checked = verify_request(path)
    receipt = read_receipt(checked.receipt)
    private = Private(checked.receipt.parent)
    why = _impossible(receipt, private)
    if why is not None:
        return Replayed(UNTOLD, why)
    kept = private.request()
    # Only what was asked counts; whether the network is good enough was decided the first time.
    case = Case.of({**_fields(kept), "accept_damage": True})
    looks = {name: Look.at(file) for name, file in inputs_of(case).items()}
    _check_files(kept, request_of(case, looks))
    _check_rows(receipt["predicate"]["inputs"], described_inputs(plan_of(case).opened, looks, private.salt))
    came = serve(case, say=say).receipt
    told, found = (_network(one) for one in (receipt, came))
    if told == found:
        return Replayed(SAME, "the same request gave the same network, byte for byte", told, found)
    changes = _changes(receipt["predicate"]["environment"], environment())
    if changes:
        reason = f"another network came out, but not everything is as it was: {'; '.join(changes)}"
        return Replayed(UNTOLD, reason, told, found)
    return Replayed(OTHER, "the same request, versions and threads gave another network", told, found)


def _impossible(receipt: Mapping[str, Any], private: Private) -> str | None:
    """Why nobody can do this request again, as a sentence; nothing where it can be tried."""
    if is_refusal(receipt):
        return "the request was refused, so there is no network to compare"
    if receipt["predicate"]["noise"]["kind"].startswith("secret"):
        return "secret noise was added, whose key was not kept: nobody can draw it again, and that is what protects"
    kept = private.request() if private.has_salt else None
    if not isinstance(kept, dict) or not isinstance(kept.get("fields"), dict):
        return f"what was asked stood in private/{REQUEST}, which is not there any more"
    if "objects" in kept:
        return "the request was made in Python from objects that no file holds"
    used = [as_flag(name) for name in ONCE if kept["fields"].get(name) is not None]
    if used:
        return f"{', '.join(used)} served this one request and may not serve another"
    return None


def _fields(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The case as it was given; paths are text in what was kept."""
    return {
        name: Path(value) if isinstance(value, str) and name in ("weights", "forget", "reference", "init") else value
        for name, value in kept["fields"].items()
    }


def _check_files(kept: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise where an input is another file than it was; nothing would be learnt from such a run."""
    changed = [
        as_flag(name)
        for name in sorted({*kept["digests"], *now["digests"]})
        if kept["digests"].get(name) != now["digests"].get(name)
    ]
    if changed:
        raise IntegrityError(
            f"{', '.join(changed)} must be what the receipt was written for, but changed since. Bring it back."
        )
    if kept["fields"] != now["fields"]:
        raise DataError(
            "The request as it was kept cannot be read by this version. Take the one that the receipt names."
        )


def _check_rows(told: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise where what the case's own code loads is not what it was, though its file is the same."""
    read = plain(now)
    changed = [as_flag(name) for name in sorted({*told, *read}) if told.get(name) != read.get(name)]
    if changed:
        raise IntegrityError(
            f"{', '.join(changed)} must give what the receipt was written for, but gives something else by now. Bring "
            "it back, the forgotten rows too."
        )


def _network(receipt: Mapping[str, Any]) -> str:
    [digest] = [one["digest"]["sha256"] for one in receipt["subject"] if one["name"] == SCRUBBED]
    return str(digest)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the receipt was written, of all that may change a bit of the result."""
    old = {**before, **before.get("packages", {})}
    new = {**now, **now["packages"]}
    names = sorted({*old, *new} - {"packages"})
    return [f"{name} was {old.get(name)}, is {new.get(name)}" for name in names if old.get(name) != new.get(name)]
