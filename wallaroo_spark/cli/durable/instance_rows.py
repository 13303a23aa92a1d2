"""Instances from the rows of their history, as the command line shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

ACTIVE = "active"
"""The state of an instance that has not ended."""


@dataclass
class InstanceSummary:
    """One instance of a pipeline."""

    partition: int
    """Partition of the input stream."""
    instance: int
    """Its number: the offset of the event that began it."""
    birth: int = 0
    """Version of the schema with which its pipeline was declared first; another after it was declared anew."""
    state: str = ACTIVE
    """``active``, or its outcome."""
    began_at: datetime | None = None
    """When it began; None where the history lacks that row, because it has expired."""
    ended_at: datetime | None = None
    """When it ended; None for an active one."""
    reason: str = ""
    """Why it failed or was cancelled; for an active one, why its last delivery failed, if one did."""
    stages: dict[str, float] = field(default_factory=dict)
    """Stage → seconds from its beginning to its ack, in the order of the acks."""
    outputs: list[str] = field(default_factory=list)
    """The places of its stream outputs, as ``stream/partition:offset``."""

    @property
    def seconds(self) -> float | None:
        """How long it took; None for an active one."""
        if self.began_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.began_at).total_seconds()

    def to_json(self) -> dict[str, Any]:
        """The instance as values that JSON has."""
        times = {"beganAt": self.began_at, "endedAt": self.ended_at}
        shown = {name: time.isoformat() if time else None for name, time in times.items()}
        others = {name: value for name, value in vars(self).items() if name not in ("began_at", "ended_at")}
        return {**others, **shown, "seconds": self.seconds}


def newest_instances(rows: Iterable[Mapping[str, Any]]) -> list[InstanceSummary]:
    """The instances of one pipeline, those that began last first; without those whose first rows have expired."""
    found: dict[tuple[int, int, int], InstanceSummary] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        if row["kind"] == "skipped":
            continue
        key = (row["partition"], row["instance"], row["birth"])
        one = found.setdefault(key, InstanceSummary(*key))
        _add(one, row)
    whole = [(one.began_at.timestamp(), one) for one in found.values() if one.began_at is not None]
    return [one for _, one in sorted(whole, key=lambda pair: (-pair[0], -pair[1].instance))]


def _add(one: InstanceSummary, row: Mapping[str, Any]) -> None:
    match row["kind"]:
        case "began":
            one.began_at = row["at"]
        case "output":
            one.stages[row["stage"]] = (row["at"] - row["began_at"]).total_seconds()
        case "nacked" if one.state == ACTIVE:
            text = row["reason"] or "nacked"
            one.reason = f"delivery {row['attempts']} of stage {row['stage']} has failed: {text}"
        case "pointer":
            where = f"{row['target_stream']}/{row['target_partition']}"
            one.outputs += [f"{where}:{offset}" for offset in row["offsets"] or ()]
        case "ended":
            one.ended_at = row["at"]
            one.state = row["outcome"]
            one.reason = row["reason"] or ""
