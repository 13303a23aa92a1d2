"""A status as text and tables on a terminal: a receiver, an application, and topics. It needs rich.

The tables' figures are those of the records that have a heading for a terminal.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from wallaroo_spark.errors import printable
from wallaroo_spark.observe.application import (
    ApplicationStatus,
    GatewayStatus,
    GroupStatus,
    PartitionState,
    PipelineStatus,
    StageStatus,
)
from wallaroo_spark.observe.figures import Figure, figures, text_of
from wallaroo_spark.observe.receiver import (
    Cause,
    DoorStatus,
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    SlotStatus,
    StreamStatus,
    TopicStatus,
)
from wallaroo_spark.observe.record import Rate, Rates
from wallaroo_spark.texts import count, day_and_clock, duration, size

_STYLES = {
    **dict.fromkeys(("serving", "streaming"), "green"),
    **dict.fromkeys(("waiting", "starting", "stopping", "resending", "gone", "left", "unknown"), "yellow"),
    **dict.fromkeys(("frozen", "lost", "unreachable", "vacant", "down"), "red"),
}
_GOOD = ("flowing", "application-flowing", "application-idle")
_FOLDED = ("address", "where", "stream", "waits for", "note", "after")
"""The columns whose texts may need several lines."""

_LEFT_OUT = {
    "dropped-unanswered": "batches went on without {} planned ranges of doors' clients, which were not answered",
    "unreadable-batches": "{} record batches of Kafka's producers could not be read",
}
"""The counts of a worker that tell of messages that are not in the table, as sentences."""
Columns = Mapping[str, Callable[[Any], Any]]
"""Heading → the text of a row's cell. A heading that ends with # is that of figures, and is shown without it."""


def table(columns: Columns, rows: Iterable[Any]) -> Table:
    """A table with a line for each row."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for name in columns:
        folds = name in _FOLDED
        made.add_column(
            name.rstrip("#"),
            justify="right" if name.endswith("#") else "left",
            no_wrap=not folds,
            overflow="fold",
            min_width=10 if folds else None,
        )
    for row in rows:
        cells = (cell(row) for cell in columns.values())
        made.add_row(*(printable(one) if isinstance(one, str) else one for one in cells))
    return made


def figure_columns(record: type[Any]) -> dict[str, Callable[[Any], str]]:
    """The columns of the figures of a record that are shown on a terminal. A row may be a pair whose second part is the
    record."""

    def cell(figure: Figure, row: Any) -> str:
        return text_of(figure, row[1] if isinstance(row, tuple) else row)

    return {f"{one.terminal}#": functools.partial(cell, one) for one in figures(record) if one.terminal}


def header(status: ReceiverStatus, rates: Rates | None = None) -> list[Text]:
    """The lines above the tables: the receiver, its cause, and its query."""
    driver = status.driver or ("not known" if status.registry_error else "none")
    standby = f", standby {status.standby}" if status.standby else ""
    lines = [Text(f"Receiver {status.name!r}, driver {driver}{standby}"), *cause_lines(status.causes)]
    if status.running:
        lines.append(Text(query_line(status, rates)))
    return lines


def cause_lines(causes: Iterable[Cause]) -> list[Text]:
    """The sentences of causes with their codes and the ways out; red when something is wrong."""
    lines = []
    for cause in causes:
        style = "green" if cause.code in _GOOD else ("" if cause.healthy else "bold red")
        lines.append(Text(printable(f"{cause.sentence} [{cause.code}]"), style=style))
        if cause.cure:
            lines.append(Text(f"  way out: {cause.cure}", style="dim"))
    return lines


def query_line(status: ReceiverStatus, rates: Rates | None = None) -> str:
    """The query, the batch, the rates and the lag in one line."""
    query, totals = status.query, status.totals
    parts = [f"query {query.state}"]
    if query.trigger:
        parts[0] += f" ({query.trigger})"
    if query.committed_batch is not None:
        parts.append(f"batch {query.committed_batch} committed")
    parts += _running(query, query.phase, status.time)
    if rates is not None and rates.seconds:
        parts.append(f"{rates.total.rows_in:,.0f} rows/s in, {rates.total.rows_out:,.0f} out")
    elif query.processed_rate:
        parts.append(f"last batch: {query.input_rate:,.0f} rows/s in, processed at {query.processed_rate:,.0f}/s")
    parts.append(f"{totals.rows:,} rows held")
    if totals.lag_rows is not None:
        parts.append(f"lag {totals.lag_rows:,} rows")
    if totals.ack_age is not None:
        parts.append(f"oldest unacknowledged row {duration(totals.ack_age)}")
    return " · ".join(parts)


def _running(query: QueryStatus, phase: str, now: float) -> list[str]:
    """The running batch, and how long its phase has lasted; nothing between batches."""
    if query.batch is None or query.since is None:
        return []
    return [f"batch {query.batch} {phase} for {duration(max(0.0, now - query.since))}"]


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _short(one: Any) -> Text:
    """The cause of a row without its subject, which stands in the same row."""
    text = one.cause.sentence.partition(": ")[2] or one.cause.sentence
    return Text(printable(text), style="" if one.cause.healthy else "red")


def _age(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _known(value: Any) -> str:
    return "" if value is None else str(value)


def _rate(rates: Rates | None, kind: str, key: Any) -> str:
    rate: Rate | None = getattr(rates, kind).get(key) if rates is not None else None
    return "" if rate is None else f"{rate.rows_in:,.0f}"


def _fill(used: int, budget: int) -> str:
    percent = 100 * used / budget if budget else 0.0
    return f"{'<1' if 0 < percent < 1 else f'{percent:.0f}'}% of {size(budget)}"


_ANSWERED: Columns = {
    **figure_columns(SlotStatus),
    "messages#": lambda slot: count(slot.counts.get("messages", 0)),
    "buffered#": lambda slot: _fill(slot.memory_used, slot.memory_budget),
    "faults#": lambda slot: count(sum(n for name, n in slot.counts.items() if name.startswith("fault:"))),
    "pressure": lambda slot: slot.pressure,
}
"""The columns of a slot that are empty unless its worker answers."""
_SLOT: Columns = {
    "slot": lambda slot: str(slot.slot),
    "state": lambda slot: _state(slot.state),
    "address": lambda slot: f"{slot.address} and QUIC" if slot.quic else slot.address,
    "where": lambda slot: "/".join(part for part in (slot.host, slot.executor) if part),
    "died#": lambda slot: str(slot.died),
    "subm.#": lambda slot: _known(slot.submissions),
    "waits for": _short,
}
"""The columns that a slot has without its worker, too."""
USUAL = (
    *("slot", "state", "address", "where", "rows/s#"),
    *figure_columns(SlotStatus),
    *("buffered#", "faults#", "died#", "subm.#", "pressure"),
)
"""The columns of a slot in ``status`` and ``top``."""
BRIEF = ("slot", "state", "address", "sessions#", "streams#", "messages#", "buffered#", "pressure", "faults#")
"""The columns that fit into 100 characters."""


def slots_view(status: ReceiverStatus, rates: Rates | None = None, *, columns: Iterable[str] = USUAL) -> Table:
    """One row for each slot."""
    all_columns = {
        **_SLOT,
        **{name: _unless(lambda slot: not slot.answers, cell) for name, cell in _ANSWERED.items()},
        "rows/s#": lambda slot: _rate(rates, "slots", slot.slot) if slot.answers else "",
    }
    return table({name: all_columns[name] for name in columns}, status.slots)


def _unless(blank: Callable[[Any], bool], cell: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The cell, empty for some rows."""
    return lambda row: "" if blank(row) else cell(row)


def doors_view(status: ReceiverStatus) -> Table:
    """One row for each door."""
    columns: Columns = {
        "door": lambda one: one.door,
        "slot": lambda one: str(one.slot),
        "address": lambda one: one.address,
        "ports": _ports,
        **figure_columns(DoorStatus),
    }
    return table(columns, status.doors)


def _ports(door: DoorStatus) -> str:
    """The ports of a door: one, or the first and the last of several, which follow one another."""
    return "-".join(str(port) for port in dict.fromkeys((*door.ports[:1], *door.ports[-1:])))


def instances_view(status: ReceiverStatus, rates: Rates | None = None, *, most: int = 20) -> Table:
    """One row for each connector instance."""

    def session(one: InstanceStatus) -> str:
        lasted = duration(max(0.0, status.time - one.since)) if one.since is not None else ""
        return f"{lasted} {one.revision}".strip()

    columns: Columns = {
        "instance": lambda one: one.name,
        "slot": lambda one: str(one.slot),
        "state": lambda one: _state("paused" if one.paused else one.state),
        "session": session,
        "rows/s#": lambda one: _rate(rates, "instances", (one.slot, one.name)),
        **figure_columns(InstanceStatus),
        "credits#": lambda one: "" if one.of_door else count(one.credits),
        "streams#": lambda one: count(one.streams),
        "silent for#": lambda one: _age(one.last_frame_age),
        "waits for": _short,
    }
    return table(columns, status.instances[:most])


def streams_view(streams: Iterable[StreamStatus], rates: Rates | None = None) -> Table:
    """One row for each of these streams."""
    columns: Columns = {
        "instance": lambda one: one.instance,
        "stream": lambda one: one.title,
        "state": lambda one: _state(one.state),
        "rows/s#": lambda one: _rate(rates, "streams", (one.slot, one.scope, one.stream_id)),
        "held#": lambda one: count(one.rows),
        "lag#": lambda one: count(one.lag_rows),
        "ack age#": lambda one: _age(one.ack_age),
        "received": lambda one: _known(one.received),
        "planned": lambda one: _known(one.planned),
        "committed": lambda one: _known(one.committed),
        "waits for": _short,
    }
    return table(columns, streams)


def notes(status: ReceiverStatus) -> list[Text]:
    """Deaths with their causes, refused connections, and warnings."""
    found = [Text(f"Warning: {warning}", style="yellow") for warning in status.warnings]
    for slot in status.slots:
        for death in slot.deaths[-2:]:
            ago = duration(max(0.0, status.time - death.at))
            why = death.error or "it ended without an error"
            found.append(Text(f"slot {slot.slot}: submission {death.submission} died {ago} ago: {why}", style="yellow"))
        if slot.error:
            found.append(Text(f"slot {slot.slot}: {slot.error}; its inner port must be reachable from here"))
        for name, text in _LEFT_OUT.items():
            if number := slot.counts.get(name, 0):
                found.append(Text(f"slot {slot.slot}: {text.format(count(number))}", style="yellow"))
        if slot.door_received:
            early = ", ".join(slot.door_received)
            found.append(Text(f"slot {slot.slot}: its doors answer {early} when received (door.received)"))
        for refusal in slot.refusals[-2:]:
            ago = duration(max(0.0, status.time - refusal.at))
            who = " ".join(part for part in (refusal.instance, refusal.peer) if part)
            # Of messages that were left out, no peer is told.
            what = "was refused" if refusal.peer else "has messages that were left out"
            times = f", {count(refusal.times)} in a row" if refusal.times > 1 else ""
            text = f"slot {slot.slot}: {who} {what} {ago} ago ({refusal.kind}{times}): {refusal.reason}"
            found.append(Text(printable(text)))
    return found


def receivers_view(receivers: Iterable[ReceiverStatus]) -> Table:
    """One row for each receiver."""
    columns: Columns = {
        "receiver": lambda one: one.name,
        "query": lambda one: one.query.state if one.running else "",
        "slots#": lambda one: f"{one.totals.serving}/{one.totals.slots}" if one.running else "",
        "sessions#": lambda one: count(one.totals.sessions),
        "streams#": lambda one: count(one.totals.streams),
        "held#": lambda one: count(one.totals.rows),
        "ack age#": lambda one: _age(one.totals.ack_age),
        "died#": lambda one: count(one.totals.died),
        "driver": lambda one: one.driver or "",
        "waits for": _short,
    }
    return table(columns, receivers)


def topics_table(topics: Iterable[TopicStatus]) -> Table:
    """One row for each partition."""
    columns: Columns = {
        "topic": lambda row: row[0].topic,
        "partition": lambda row: str(row[1].partition),
        "state": lambda row: _state(row[1].state),
        "address": lambda row: row[1].address,
        "newest epoch#": lambda row: "none" if row[1].newest is None else str(row[1].newest),
        "subscribers#": lambda row: str(row[1].subscribers),
    }
    return table(columns, ((topic, one) for topic in topics for one in topic.partitions))


def application_view(found: ApplicationStatus) -> Group:
    """An application for a person: the cause, the query, gateways, streams, groups, pipelines and their stages."""
    age = max(0.0, time.time() - found.time)
    driver = f", by the driver {found.driver}" if found.driver else ""
    driver += f", standby {found.standby}" if found.standby else ""
    figures_of = Text(f"Figures of {day_and_clock(found.time)} ({duration(age)} old){driver}")
    parts: list[Any] = [*cause_lines(found.causes), Text(_application_query(found)), figures_of]
    stages = [(pipeline.pipeline, one) for pipeline in found.pipelines for one in pipeline.stages]
    for heading, made in (
        ("Gateways", table(_GATEWAY, found.gateways)),
        ("Streams", table(_STREAM, found.partitions)),
        ("Groups", groups_table(found)),
        ("Pipelines", table(_PIPELINE, found.pipelines)),
        ("Stages", table(_STAGE, stages)),
    ):
        if made.row_count:
            parts += [Text(), Text(heading, "bold"), made]
    parts += [Text(f"Error: {error}", "red") for error in found.errors]
    for one in found.gateways:
        if one.last_error:
            parts.append(Text(f"Gateway {one.gateway} was started {count(one.submissions, 'time')}: {one.last_error}"))
    return Group(*parts)


def _application_query(found: ApplicationStatus) -> str:
    query = found.query
    parts = [f"query {query.state}"]
    if query.committed_batch is not None:
        age = "" if found.commit_age is None else f" {duration(found.commit_age)} before"
        parts.append(f"batch {query.committed_batch} committed{age}")
    parts += _running(query, "runs", found.time)
    if "addBatch" in query.durations and (total := query.durations.get("triggerExecution")):
        parts.append(f"batch {query.reported_batch}: {count(query.input_rows, 'row')} in {duration(total / 1000)}")
    if found.query_starts > 1:
        parts.append(f"started {found.query_starts} times")
    if found.schema is not None:
        parts.append(f"schema version {found.schema}")
    return " · ".join(parts)


_GATEWAY: Columns = {
    "gateway": lambda one: one.gateway,
    "state": lambda one: _state(one.state),
    "address": lambda one: one.address,
    "generation#": lambda one: "" if one.age is None else count(one.generation),
    **{
        name: cell
        if name in ("queued#", "unread files#", "unread events#", "starts#")
        else _unless(lambda one: one.age is None, cell)
        for name, cell in figure_columns(GatewayStatus).items()
    },
}
"""The columns of a gateway. Without a report of it only some figures are known."""
_STREAM: Columns = {
    "stream": lambda one: one.stream,
    "partition#": lambda one: str(one.partition),
    **figure_columns(PartitionState),
    "groups#": lambda one: str(len(one.groups)),
}
_PIPELINE: Columns = {
    "pipeline": lambda one: one.pipeline,
    "input": lambda one: one.input,
    **figure_columns(PipelineStatus),
}


_STAGE: Columns = {
    "stage": lambda row: row[1].stage,
    "pipeline": lambda row: row[0],
    "after": lambda row: ", ".join(row[1].after) or "the event",
    **{
        name: _unless(lambda row: row[1].in_spark, cell) if name in ("members#", "waiting#", "running#") else cell
        for name, cell in figure_columns(StageStatus).items()
    },
    "note": lambda row: row[1].note,
}
"""The columns of a pipeline and its stage. A stage in Spark has no members."""
_GROUP: Columns = {
    "group": lambda row: row[1].group,
    "stream": lambda row: row[0].stream,
    "partition#": lambda row: str(row[0].partition),
    **figure_columns(GroupStatus),
    "attempts#": lambda row: count(row[1].attempts) if row[1].attempts else "",
    "note": lambda row: row[1].note,
}


def groups_table(found: ApplicationStatus, stream: str = "") -> Table:
    """The groups of all streams, or of one: a row for each partition."""
    partitions = (one for one in found.partitions if stream in ("", one.stream))
    return table(_GROUP, ((one, group) for one in partitions for group in one.groups))
