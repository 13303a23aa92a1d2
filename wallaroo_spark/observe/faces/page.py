"""The status pages of receivers and applications: their files, and the JSON that they show. Pure.

The JSON is one snapshot, cut to the rows that a person reads, with rates and history. The files are part of the
package: there is no build step, and nothing comes from other servers.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any, TypeVar

from wallaroo_spark.observe.application import GatewayStatus, GroupStatus, PartitionState, PipelineStatus, StageStatus
from wallaroo_spark.observe.causes import is_failing
from wallaroo_spark.observe.faces.records import SCHEMA, record_to_json, to_json
from wallaroo_spark.observe.figures import columns, figures
from wallaroo_spark.observe.receiver import DoorStatus, InstanceStatus, SlotStatus, StreamStatus
from wallaroo_spark.observe.record import ApplicationRecord, Rate, RunRecord
from wallaroo_spark.observe.server.messages import CSS, HTML, JAVASCRIPT, SVG, Response, Route

MOST_ROWS = 100
"""The most rows of each table. A choice: nobody reads more, and 100 of each make some 200 KB of JSON."""
USUAL_ROWS = 25
MOST_EVENTS = 50
NAMED_INSTANCES = 5
"""Instances that are named at their slot; the others are counted."""

T = TypeVar("T", bound=SlotStatus | InstanceStatus | StreamStatus)


@dataclass(frozen=True)
class PageQuery:
    """The rows that a browser asks for."""

    top: int = USUAL_ROWS
    """The most rows of each table, up to MOST_ROWS."""
    search: str = ""
    """A part of the name of an instance or a stream, in any case; empty: all."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> PageQuery:
        """Read the fields ``top`` and ``search`` of a query string; a field that cannot be read has its default."""
        text = query.get("top", "")
        top = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else USUAL_ROWS
        return cls(min(max(top, 1), MOST_ROWS), query.get("search", "")[:200].strip().casefold())


def document(record: RunRecord, *, age: float, patience: float, query: Mapping[str, str]) -> dict[str, Any]:
    """The JSON-ready values of the page; ``query`` is the query string of the request.

    ``age`` is the time since the newest snapshot was complete, and ``patience`` the age from which it counts as old,
    both in seconds. The record has at least one snapshot.
    """
    wanted = PageQuery.of(query)
    status = record.last
    assert status is not None
    rates = record.rates()
    instances = [one for one in status.instances if _is_found(wanted.search, one.name, one.program, one.peer)]
    streams = [one for one in status.streams if _is_found(wanted.search, one.name, one.instance, str(one.stream_id))]
    connected = _connected(status.instances)
    shown = {
        # The rows are converted only as far as they are shown.
        **to_json(replace(status, slots=(), instances=(), streams=(), doors=(), topics=(), sinks=())),
        "slots": [
            _row(
                slot,
                rates.slots.get(slot.slot),
                answers=slot.answers,
                trouble=_is_trouble(slot),
                connected=connected[slot.slot][:NAMED_INSTANCES],
            )
            for slot in worst(status.slots, wanted.top, _slot_rank)
        ],
        "instances": [
            _row(one, rates.instances.get((one.slot, one.name)), of_door=one.of_door)
            for one in worst(instances, wanted.top, _wait_rank)
        ],
        "streams": [
            _row(one, rates.streams.get((one.slot, one.scope, one.stream_id)))
            for one in worst(streams, wanted.top, _wait_rank)
        ],
        "doors": [record_to_json(door) for door in sorted(status.doors, key=_door_rank)[: wanted.top]],
        "topics": [record_to_json(topic) for topic in status.topics[:MOST_ROWS]],
        "sinks": [record_to_json(sink) for sink in status.sinks[:MOST_ROWS]],
    }
    return {
        **_of_record(record, age, patience),
        "status": shown,
        "columns": {
            "slots": columns(SlotStatus),
            "instances": columns(InstanceStatus),
            "doors": columns(DoorStatus),
        },
        "states": dict(Counter(slot.state for slot in status.slots)),
        "shown": {
            "slots": len(status.slots),
            "doors": len(status.doors),
            "instances": len(instances) if wanted.search else max(len(instances), status.totals.instances),
            "streams": len(streams) if wanted.search else max(len(streams), status.totals.streams),
        },
        "searched": {"instance": len(status.instances), "stream": len(status.streams)},
        "rates": {
            "seconds": round(rates.seconds, 3),
            "rows_in": rounded(rates.total.rows_in) if rates.seconds else None,
            "rows_out": rounded(rates.total.rows_out) if rates.seconds else None,
        },
    }


def _of_record(record: RunRecord | ApplicationRecord, age: float, patience: float) -> dict[str, Any]:
    """The values that both pages have."""
    recent = [asdict(point) for point in record.recent]
    return {
        "schema": SCHEMA,
        "age": round(age, 3),
        "patience": patience,
        "history": {name: [rounded(point[name]) for point in recent] for name in (recent[0] if recent else ())},
        "batches": [asdict(batch) for batch in record.batches],
        "events": [asdict(event) for event in record.events()[:MOST_EVENTS]],
    }


def worst(rows: Iterable[T], most: int, rank: Callable[[T], tuple[Any, ...]]) -> list[T]:
    """The ``most`` rows of the greatest rank, the worst first; equal ones in their former order."""
    return heapq.nsmallest(most, rows, key=lambda row: tuple(-part for part in rank(row)))


def _slot_rank(slot: SlotStatus) -> tuple[Any, ...]:
    # Working slots stay in the order of their numbers, so that a row does not move while a person reads it.
    return (not slot.cause.healthy, -slot.slot)


def _is_trouble(slot: SlotStatus) -> bool:
    """Whether a slot is itself a place of trouble. One that only waits for a trouble elsewhere is not."""
    broken = any(getattr(slot, one.name) for one in figures(SlotStatus) if one.flipped)
    return broken or slot.pressure == "hard" or not (slot.answers or slot.state == "starting")


def _wait_rank(one: InstanceStatus | StreamStatus) -> tuple[Any, ...]:
    return (not one.cause.healthy, -1.0 if one.ack_age is None else one.ack_age, one.rows)


def _door_rank(door: DoorStatus) -> tuple[Any, ...]:
    return (-door.waiting, door.slot, door.door)


def _is_found(search: str, *texts: str) -> bool:
    return not search or any(search in text.casefold() for text in texts)


def _connected(instances: Iterable[InstanceStatus]) -> Mapping[int, list[str]]:
    by_slot: dict[int, list[str]] = defaultdict(list)
    for one in sorted(instances, key=lambda one: one.name):
        if one.state != "gone":
            by_slot[one.slot].append(one.name)
    return by_slot


def _row(record: Any, rate: Rate | None, **more: Any) -> dict[str, Any]:
    rows_in, rows_out = (rate.rows_in, rate.rows_out) if rate else (None, None)
    return {**record_to_json(record), "rate_in": rounded(rows_in), "rate_out": rounded(rows_out), **more}


def rounded(value: float | None) -> float | None:
    """A figure with three decimals."""
    return None if value is None else round(value, 3)


def application_document(
    record: ApplicationRecord, *, age: float, patience: float, query: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON-ready values of the page.

    ``age`` is the time since the newest snapshot was complete, and ``patience`` the age from which it counts as old,
    both in seconds; the page has no query. The record has at least one snapshot.
    """
    del query
    status = record.last
    assert status is not None
    groups = [
        {"stream": one.stream, "partition": one.partition, **record_to_json(group), "note": group.note}
        for one in status.partitions
        for group in one.groups
    ]
    groups.sort(key=lambda group: -group["lag"])
    newest = record.recent[-1]
    shown = record_to_json(replace(status, partitions=status.partitions[:MOST_ROWS]))
    for row, pipeline in zip(shown["pipelines"], status.pipelines, strict=True):
        for line, stage in zip(row["stages"], pipeline.stages, strict=True):
            line |= {"note": stage.note, "bad": stage.unserved is not None or is_failing(stage)}
    return {
        **_of_record(record, age, patience),
        "status": shown,
        "columns": {
            "gateways": columns(GatewayStatus),
            "streams": columns(PartitionState),
            "groups": columns(GroupStatus),
            "pipelines": columns(PipelineStatus),
            "stages": columns(StageStatus),
        },
        "groups": groups[:MOST_ROWS],
        "shown": {"partitions": len(status.partitions), "groups": len(groups)},
        "rates": {"seconds": 0, **{name: rounded(getattr(newest, name)) for name in ("events", "records", "outputs")}},
    }


RECEIVER = "receiver"
APPLICATION = "application"
_WORDS = {
    RECEIVER: {"flow": "From connector to acknowledgement", "token": "option <code>statusPageToken</code>"},
    APPLICATION: {"flow": "From client to recorded output", "token": "setting <code>status_page_token</code>"},
}
"""The words of the shell of both pages that differ."""


def static_routes(subject: str = RECEIVER) -> dict[str, Route]:
    """The routes of a page itself. They show nothing of a receiver or an application, so they need no token."""
    sections = static_text(f"{subject}.html").rstrip("\n")
    words = {"subject": subject, "Subject": subject.capitalize(), "sections": sections, **_WORDS[subject]}
    files = {
        "/": (static_text("page.html", **words), HTML),
        "/page.css": (static_text("page.css"), CSS),
        "/common.js": (static_text("common.js"), JAVASCRIPT),
        f"/{subject}.js": (static_text(f"{subject}.js"), JAVASCRIPT),
        "/favicon.svg": (static_text("favicon.svg"), SVG),
    }
    return {path: Route(Response(kind, content.encode()), open=True) for path, (content, kind) in files.items()}


def static_text(name: str, **words: str) -> str:
    """A file of the folder ``static``, with these words in place of their names in double braces."""
    text = (resources.files("wallaroo_spark.observe.faces") / "static" / name).read_text(encoding="utf-8")
    return re.sub(r"{{(\w+)}}", lambda found: words[found[1]], text)
