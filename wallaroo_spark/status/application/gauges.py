"""The gauges of all keys of an application, added up from the manifests of its committed batches. Pure.

A manifest has the gauges of the keys that had a turn in its batch. Each batch is added once, in the order of the
batches. The sum is stored beside the batches, because their manifests are deleted. Source:
``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

FORMAT = 1
"""The version of the stored sum."""


class GaugeSum:
    """The newest gauges of each key, and the sums of the counts of all batches."""

    def __init__(self) -> None:
        self.batch = -1
        """The newest batch that was added; -1 before the first."""
        self.first: int | None = None
        """The first batch that was added."""
        self.keys: dict[str, dict[str, Any]] = {}
        """The text of a key → its newest gauges; see ``engine/operator/gauges.py``."""
        self.records: dict[str, int] = {}
        """The text of a key → the records that were appended."""
        self.pipelines: dict[str, dict[str, Any]] = {}
        """The path of a pipeline → the sums of its counts."""
        self.unserved: dict[str, dict[str, int]] = {}
        """The text of a key → ``pipeline stage`` → since when deliveries wait there without a member, in
        milliseconds."""

    def add(self, batch: int, gauges: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the gauges of a committed batch, unless it was added before."""
        if batch <= self.batch:
            return
        self.batch = batch
        self.first = batch if self.first is None else self.first
        for key, values in gauges.items():
            state = {name: value for name, value in values.items() if name != "did"}
            self.keys[key] = state
            self._follow_unserved(key, state)
            did = values.get("did", {})
            self.records[key] = self.records.get(key, 0) + did.get("records", 0)
            for pipeline, counts in did.get("pipelines", {}).items():
                _add(self.pipelines.setdefault(pipeline, {}), counts)

    def forget(self, known: set[str]) -> None:
        """Forget all keys but these: the others are declared no more."""
        for values in (self.keys, self.records, self.unserved):
            for key in values.keys() - known:
                del values[key]

    def _follow_unserved(self, key: str, state: Mapping[str, Any]) -> None:
        before, now = self.unserved.get(key, {}), {}
        for pipeline, one in state.get("pipelines", {}).items():
            for stage, queue in one["stages"].items():
                if queue["waiting"] and not queue["members"]:
                    place = f"{pipeline} {stage}"
                    now[place] = before.get(place, int(state["at"]))
        self.unserved.pop(key, None)
        if now:
            self.unserved[key] = now

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {"format": FORMAT, **copy.deepcopy(vars(self))}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GaugeSum:
        """The sum from its JSON. Another format, or a text that is none, is an empty sum: the figures begin anew."""
        found = cls()
        if values.get("format") == FORMAT:
            for name in vars(found):
                setattr(found, name, values[name])
        return found


def _add(total: dict[str, Any], counts: Mapping[str, Any]) -> None:
    for name, value in counts.items():
        if isinstance(value, Mapping):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
