"""The registry's tables in the present version, from which statements are built.

PostgreSQL's tables are created from them. SQLite's are created by coordinator.storage.database.migrations, step by step, so
that a new file and a migrated file are the same.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.schema import SchemaItem, UniqueConstraint

from fedpatch.coordinator.storage.database.migrations import COUNTERS

METADATA = MetaData()


def _table(name: str, *items: SchemaItem) -> Table:
    return Table(name, METADATA, *items)


def _text(name: str, default: str | None = None) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=default)


def _count(name: str, default: str | None = None) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=default)


def _number(name: str) -> Column[float]:
    return Column(name, Double, nullable=False)


def _key(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


def _order() -> Column[int]:
    return Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


def _run(*, key: bool = True) -> Column[str]:
    return Column("run", Text, ForeignKey("runs.id"), primary_key=key, nullable=False)


def _round(*, key: bool = True) -> Column[int]:
    return Column("round", BigInteger, primary_key=key, nullable=False, autoincrement=False)


runs = _table(
    "runs",
    _order(),
    Column("id", Text, nullable=False, unique=True),
    _number("created_at"),
    *map(_text, ("task", "strategy", "private", "settings", "schema")),
    _count("epoch"),
    _text("status"),
    *(Column(name, Text) for name in ("stopped_because", "model")),
    Column("user_accuracy", Double),
    _count("changes", "0"),
    CheckConstraint("status IN ('running', 'finished', 'interrupted', 'failed')"),
)
rounds = _table("rounds", _run(), _round(), _text("record"))
devices = _table(
    "devices",
    _key("fleet"),
    _key("id"),
    _number("first_seen"),
    _number("last_seen"),
    _count("online"),
    _text("version"),
    _text("tasks"),
    *(_count(name, "0") for name in COUNTERS),
    _text("last_reason", ""),
    _count("relay", "0"),
)
updates = _table(
    "updates",
    _run(),
    _round(),
    _key("device"),
    _text("digest"),
    _count("raw_bytes"),
    _count("num_examples"),
    _text("encoding", "fp32+zstd"),
)
open_rounds = _table(
    "open_rounds",
    _run(),
    _round(key=False),
    _count("target"),
    _text("invited"),
    _text("base"),
    _number("spent_s"),
    _text("boot"),
    _number("uptime_s"),
    _number("unix_s"),
    _count("closing", "0"),
    _count("paused", "0"),
    _text("encoding", ""),
    _text("negotiated", "{}"),
    _text("absent", "[]"),
    _text("offenders", "{}"),
    _text("departed", "{}"),
)
acceptances = _table("acceptances", _run(), _key("device"))
holds = _table(
    "holds",
    *map(_key, ("fleet", "id", "kind")),
    _text("reason"),
    _number("since"),
    CheckConstraint("kind IN ('quarantined', 'drained')"),
)
offences = _table("offences", _key("fleet"), _key("id"), _count("count"), _text("last"))
masking = _table(
    "masking",
    _order(),
    _run(key=False),
    _round(key=False),
    _count("team"),
    _text("step"),
    _text("device"),
    Column("content", LargeBinary, nullable=False),
    CheckConstraint("step IN ('terms', 'roster', 'shares', 'masking', 'reported', 'reveal')"),
    UniqueConstraint("run", "round", "team", "step", "device"),
)
carried_work = _table(
    "carried_work",
    _run(),
    _key("device"),
    _round(key=False),
    _count("epoch"),
    _count("version"),
    _text("base"),
    _text("encoding"),
)
leaders = _table("leaders", _key("fleet"), _count("epoch"), _text("holder"))
