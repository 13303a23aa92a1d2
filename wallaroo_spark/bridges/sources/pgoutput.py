"""The messages of PostgreSQL's output plug-in ``pgoutput``, version 1, as changes of rows. Pure: bytes in, changes out.

Its format is in PostgreSQL's manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

ROW_BITS = 21
"""Bits of a reference that number the rows of a transaction: 2 million of them."""
STEP_BITS = 5
"""Bits of an LSN that are left out of a reference: a commit takes more than 32 bytes of the log, so no two have the
same place without them. 48 bits are left, for 256 TiB of log."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_AS_WRITTEN = {20, 21, 23, 26, 700, 701, 1700, 114, 3802}
"""OIDs of types whose text is JSON: integers, floats, numeric, json and jsonb."""
_NO_JSON = ("NaN", "Infinity", "-Infinity")
_BOOLEAN = 16
_OPERATIONS = {"I": "insert", "U": "update", "D": "delete"}


def reference_of(commit: int, row: int) -> int:
    """The reference of a row, the first of a transaction being 1, from the LSN of the commit. Raises OverflowError."""
    if row >> ROW_BITS or commit >> (64 - ROW_BITS + STEP_BITS):
        raise OverflowError(f"row {row} of the transaction that ends at {lsn_text(commit)}")
    return (commit >> STEP_BITS) << ROW_BITS | row


def lsn_of(reference: int) -> int:
    """An LSN in front of which all transactions are committed, if ``reference`` is; not above that of its commit."""
    return reference >> ROW_BITS << STEP_BITS


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: int
    """The OID of its type."""
    key: bool
    """Whether it belongs to the replica identity."""


@dataclass(frozen=True)
class Change:
    """A change of a row, or the truncation of a table."""

    reference: int
    """Its point of reference."""
    body: bytes
    """A JSON object."""
    key: bytes | None
    """The values of the replica identity as a JSON array."""
    time: int
    """Nanoseconds since 1970 of its commit."""


@dataclass
class ChangeDecoder:
    """Makes changes of the messages of one connection."""

    _relations: dict[int, tuple[str, list[Column]]] = field(default_factory=dict)
    _head: dict[str, str] = field(default_factory=dict)
    _commit: int = 0
    _time: int = 0
    _row: int = 0
    within: bool = False
    """Whether a transaction has begun and not ended."""

    def decode(self, data: bytes) -> list[Change]:
        """The changes of a message. Raises OverflowError for a row that has no reference."""
        kind, rest = chr(data[0]), _Fields(data, 1)
        if kind == "B":
            self._commit, micros, xid = rest.take("qqI")
            self._time = int((_EPOCH + timedelta(microseconds=micros)).timestamp() * 1_000_000) * 1000
            self._head = {"xid": str(xid), "lsn": _quoted(lsn_text(self._commit))}
            self._row, self.within = 0, True
        elif kind == "C":
            self.within = False
        elif kind == "R":
            (oid,) = rest.take("I")
            name = f"{rest.text()}.{rest.text()}"
            _, count = rest.take("bh")
            self._relations[oid] = name, [rest.column() for _ in range(count)]
        elif kind in _OPERATIONS:
            return [self._change(kind, rest)]
        elif kind == "T":
            count, _ = rest.take("ib")
            tables = [self._relations[oid][0] for oid in rest.take(f"{count}I")]
            return [self._made({"op": '"truncate"', "table": _quoted(table)}, None) for table in tables]
        return []

    def _change(self, kind: str, rest: _Fields) -> Change:
        (oid,) = rest.take("I")
        table, columns = self._relations[oid]
        body = {"op": json.dumps(_OPERATIONS[kind]), "table": _quoted(table)}
        keys: dict[str, str] = {}
        while rest.more:
            mark = rest.take("c")[0]
            row = rest.row(columns)
            if mark == b"K":
                row = {one.name: row[one.name] for one in columns if one.key}
            body["new" if mark == b"N" else "old"] = _object(row)
            keys = row
        names = [one.name for one in columns if one.key]
        key = f"[{', '.join(keys.get(name, 'null') for name in names)}]".encode() if names else None
        return self._made(body, key)

    def _made(self, body: dict[str, str], key: bytes | None) -> Change:
        self._row += 1
        text = _object({**body, **self._head}).encode()
        return Change(reference_of(self._commit, self._row), text, key, self._time)


@dataclass
class _Fields:
    """The fields of a message, one after the other."""

    data: bytes
    at: int

    @property
    def more(self) -> bool:
        return self.at < len(self.data)

    def take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f">{form}", self.data, self.at)
        self.at += struct.calcsize(f">{form}")
        return found

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end].decode()
        self.at = end + 1
        return found

    def column(self) -> Column:
        (flags,) = self.take("b")
        name = self.text()
        kind, _ = self.take("Ii")
        return Column(name, kind, bool(flags & 1))

    def row(self, columns: list[Column]) -> dict[str, str]:
        """The values by column; a value that an update has not changed and the log does not have is left out."""
        (count,) = self.take("h")
        found: dict[str, str] = {}
        for column in columns[:count]:
            mark = self.take("c")[0]
            if mark == b"n":
                found[column.name] = "null"
            elif mark != b"u":
                (size,) = self.take("i")
                found[column.name] = json_of(column.type, self.data[self.at : self.at + size])
                self.at += size
        return found


def json_of(kind: int, data: bytes) -> str:
    """A value in JSON, of its text: numbers and documents as they are written, anything else as a string."""
    text = data.decode(errors="backslashreplace")
    if kind in _AS_WRITTEN and text not in _NO_JSON:
        return text
    if kind == _BOOLEAN:
        return "true" if text == "t" else "false"
    return _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _object(fields: dict[str, str]) -> str:
    return f"{{{', '.join(f'{_quoted(name)}: {value}' for name, value in fields.items())}}}"
