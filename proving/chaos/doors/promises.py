"""Compares the committed rows with what the clients of doors were answered, by what each of them was promised."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from proving.chaos.judge import Written


class Promise(StrEnum):
    """What a client is promised; the table in docs/doors.md says the same of every kind of client."""

    ONCE = "exactly once"
    ANSWERED = "what was answered"


FORBIDDEN = {
    Promise.ONCE: ("missing", "repeated", "disordered", "altered", "early", "open"),
    Promise.ANSWERED: ("missing", "altered", "early", "open"),
}
"""The counts that must be 0."""


MOST_REASONS = 5
"""The most reasons of one client that are reported. A choice."""
Numbers = Callable[[Mapping[str, Any], str], list[int]]
"""The numbers of the messages that a row has, of a client with that name; none for a row that it has not sent."""


def number_of(row: Mapping[str, Any], name: str) -> list[int]:
    """The number of a row whose key is the client's name and whose value is a decimal number; otherwise none."""
    value = bytes(row["value"] or b"")
    return [int(value)] if row["key"] == name.encode() and re.fullmatch(rb"[0-9]{1,18}", value) else []


@dataclass(frozen=True)
class Expected:
    """A client as the judge knows it. It sends messages with the numbers from 0 on."""

    name: str
    """Its name, which is its stream, too."""
    promise: Promise
    """What it is promised."""
    instance: str
    """What its rows' column ``instance`` matches whole, a regular expression."""
    stream: str
    """The same for the column ``stream``."""
    numbers: Numbers = number_of
    """Reads them from a row of the sink's table."""


@dataclass
class Told:
    """What a client has said."""

    answered: dict[int, float] = field(default_factory=dict)
    """The numbers that it was answered with success, each with the time of the wall clock."""
    given_up: dict[int, str] = field(default_factory=dict)
    """The numbers that it gave up, each with its reason."""
    ended: bool = False
    """Whether it has come to its end."""

    def take(self, line: str, now: float) -> None:
        """A line of its program."""
        word, _, rest = line.strip().partition(" ")
        number, _, reason = rest.partition(" ")
        if word == "acked":
            self.answered[int(number)] = now
        elif word == "failed":
            self.given_up[int(number)] = reason
        elif word == "end":
            self.ended = True


@dataclass(frozen=True)
class Counts:
    """Counts of one client's messages."""

    promise: Promise
    sent: int
    """All that it was to send."""
    answered: int
    """Those that were answered with success."""
    given_up: int
    """Those that its program was told not to be delivered."""
    committed: int
    """Those with at least one row."""
    missing: int
    """Those that were answered and have no row."""
    repeated: int
    """Further rows of a message."""
    disordered: int
    """Rows that follow a row with a higher number in their partition."""
    altered: int
    """Rows that are none of the client's messages."""
    early: int
    """Those that were answered before the commit of their batch."""
    open: int
    """Those that were neither answered nor given up. All of them, where the program has not come to its end."""

    @property
    def broken(self) -> dict[str, int]:
        """The counts that break the promise."""
        found: dict[str, int] = asdict(self)
        return {name: found[name] for name in FORBIDDEN[self.promise] if found[name]}


@dataclass(frozen=True)
class ClientsVerdict:
    """The counts of each client by its name; ``strangers``, the rows that no client has sent; and why each client gave
    messages up: the number of messages by reason.
    """

    clients: Mapping[str, Counts]
    strangers: int
    reasons: Mapping[str, Mapping[str, int]]

    @property
    def clean(self) -> bool:
        """Whether every client got what it was promised, and each was answered at all."""
        return not self.strangers and all(one.answered and not one.broken for one in self.clients.values())

    @property
    def title(self) -> str:
        """The verdict in a line."""
        broken = [f"{name}: {one.broken}" for name, one in self.clients.items() if one.broken]
        answered = sum(one.answered for one in self.clients.values())
        once = [one for one in self.clients.values() if one.promise is Promise.ONCE]
        return (
            f"{len(self.clients)} clients, {answered:,} messages answered: "
            f"{sum(one.missing for one in self.clients.values())} of them missing; "
            f"{sum(one.repeated for one in once)} repeated where a client is promised {Promise.ONCE}"
            + (f". Broken: {'; '.join(broken)}" if broken else "")
        )

    @property
    def lines(self) -> list[str]:
        """The counts for a person, a line for each client."""
        names = [name for name in Counts.__dataclass_fields__ if name != "promise"]
        head = f"{'':<26}{'promise':<19}" + "".join(f"{name.replace('_', ' '):>11}" for name in names)
        rows = []
        for client, one in self.clients.items():
            counts = asdict(one)
            rows.append(f"{client:<26}{one.promise.value:<19}" + "".join(f"{counts[name]:>11,}" for name in names))
        return [head, *rows, *([f"rows that no client has sent: {self.strangers}"] if self.strangers else [])]

    def to_json(self) -> dict[str, Any]:
        """The counts by client."""
        counts = {name: asdict(one) for name, one in self.clients.items()}
        return {"clients": counts, "strangers": self.strangers, "given_up": self.reasons}


def judge(expected: Sequence[Expected], count: int, told: Mapping[str, Told], written: Written) -> ClientsVerdict:
    """The counts of all clients, each of which has sent ``count`` messages."""
    rows: dict[str, list[dict[str, Any]]] = {one.name: [] for one in expected}
    strangers = 0
    for row in written.rows.to_pylist():
        owner = next((one for one in expected if _owns(one, row)), None)
        if owner is None:
            strangers += 1
        else:
            rows[owner.name].append(row)
    return ClientsVerdict(
        {one.name: judge_client(one, count, told[one.name], rows[one.name], written.commits) for one in expected},
        strangers,
        {name: _reasons(one) for name, one in told.items() if one.given_up},
    )


def _reasons(told: Told) -> dict[str, int]:
    """How many messages were given up for each reason, in which numbers do not matter."""
    return dict(Counter(re.sub(r"[0-9]+", "N", reason) for reason in told.given_up.values()).most_common(MOST_REASONS))


def judge_client(
    expected: Expected,
    count: int,
    told: Told,
    rows: Sequence[Mapping[str, Any]],
    commits: Mapping[int, float],
) -> Counts:
    """Compare the rows of one client, in the order of writing, with what it was answered."""
    committed_at: dict[int, float] = {}
    highest: dict[int, int] = {}
    repeated = disordered = altered = 0
    for row in rows:
        numbers = expected.numbers(row, expected.name)
        altered += not numbers
        for number in numbers:
            if number >= count:
                altered += 1
                continue
            repeated += number in committed_at
            committed_at.setdefault(number, commits.get(row["batch"], float("inf")))
            disordered += number < highest.get(row["stream_id"], -1)
            highest[row["stream_id"]] = max(number, highest.get(row["stream_id"], -1))
    spoken = told.answered.keys() | told.given_up.keys()
    return Counts(
        promise=expected.promise,
        sent=count,
        answered=len(told.answered),
        given_up=len(told.given_up),
        committed=len(committed_at),
        missing=len(told.answered.keys() - committed_at.keys()),
        repeated=repeated,
        disordered=disordered,
        altered=altered,
        early=sum(seen < committed_at.get(number, 0.0) for number, seen in told.answered.items()),
        open=count - len(spoken) if told.ended else count,
    )


def _owns(expected: Expected, row: Mapping[str, Any]) -> bool:
    return bool(re.fullmatch(expected.instance, row["instance"]) and re.fullmatch(expected.stream, row["stream"]))


def outcomes(told: Told, count: int) -> Iterator[tuple[float, bool]]:
    """For each message the time of its answer, infinite where there is none, and whether it was given up."""
    for number in range(count):
        yield told.answered.get(number, float("inf")), number in told.given_up
