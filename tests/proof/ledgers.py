"""Small ledgers for tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event

from spotlessnet.proof import dsse, ledger
from spotlessnet.proof.keys import SigningKey
from spotlessnet.store.receipts import statement as statement_of


def statement(number: int) -> bytes:
    """Something of a receipt's form; what a ledger looks at."""
    told: dict[str, Any] = {"_type": "https://in-toto.io/Statement/v1", "subject": [], "predicate": {"number": number}}
    return json.dumps({**told, "predicateType": "urn:test"}).encode()


def opened(path: Path) -> Engine:
    """A database of its own, whose transactions begin when they are told to."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=WAL"))
    return engine


def filled(engine: Engine, key: SigningKey, count: int, rotations: Sequence[tuple[int, SigningKey]] = ()) -> SigningKey:
    """A ledger of `count` entries; at each rotation's index a new key takes over. Gives the last key."""
    turns = dict(rotations)
    with ledger.writing(engine) as connection:
        ledger.create(connection)
        for index in range(count):
            if index in turns:
                ledger.rotate(connection, key, turns[index])
                key = turns[index]
            else:
                ledger.append(connection, dsse.sign(statement(index), [key]), key)
    return key


def receipt(number: int = 0, **more: Any) -> bytes:
    """A receipt as a request leaves it, well formed in every part; its file's bytes."""
    salt, digest = b"s" * 32, f"{number:064x}"
    told = statement_of(
        subjects={"scrubbed.safetensors": digest},
        inputs={"data": {"rows": {"count": 60, "commitment": digest}}},
        request={
            **dict.fromkeys(("missing", "duplicates", "copies"), 0),
            "matched": 2,
            "kept": 58,
            "identity": digest,
            "cohort": {"commitment": digest, "algorithm": "x"},
        },
        method="retrain",
        settings={},
        noise={"kind": "none"},
        diagnostics={},
        private={"destroy_after": "2027-01-31T12:00:00+00:00"},
        salt=salt,
        **more,
    )
    return json.dumps(told, indent=2, sort_keys=True).encode() + b"\n"
