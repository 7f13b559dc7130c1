"""The ledger's tables, the same on SQLite and PostgreSQL."""

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.types import TypeEngine

METADATA = MetaData()
"""Of these tables alone; migrations of a service include it beside their own."""

WHOLE: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")
"""SQLite's own row number is the cheapest key, and only `INTEGER` is that."""

log = Table(
    "ledger_log",
    METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("name", String(32), nullable=False),
    Column("size", BigInteger, nullable=False),
)
"""One row. Whoever appends locks it first, so that entries come one after another."""

entries = Table(
    "ledger_entries",
    METADATA,
    Column("position", WHOLE, primary_key=True, autoincrement=False),
    Column("leaf", LargeBinary(32), nullable=False, unique=True),
    Column("kind", String(100), nullable=False),
    Column("envelope", Text, nullable=False),
)
"""Envelopes in their one spelling, in order. The same envelope is held once."""

nodes = Table(
    "ledger_nodes",
    METADATA,
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary(32), nullable=False),
)
"""The hash of every full subtree above single entries."""

heads = Table(
    "ledger_heads",
    METADATA,
    Column("size", WHOLE, primary_key=True, autoincrement=False),
    Column("envelope", Text, nullable=False),
)
"""One signed tree head after every entry."""
