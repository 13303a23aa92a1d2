"""``status --app``: an application of durable streams at a glance."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from wallaroo_spark.cli.common import count
from wallaroo_spark.cli.status import sources
from wallaroo_spark.status.cause import seconds_text

if TYPE_CHECKING:
    from wallaroo_spark.status.application.model import ApplicationStatus, StageStatus

_STYLES = {"serving": "green", "starting": "yellow", "down": "red", "unknown": "yellow"}


def look(app: str, registry: str, application: str) -> ApplicationStatus:
    """The newest snapshot: from the registry when ``application`` is given, else from the folder ``app``."""
    from wallaroo_spark.engine.observing.published import in_folder, in_registry

    if application:
        return in_registry(registry, application, sources.ATTEMPTS)
    return in_folder(app)


def at_a_glance(found: ApplicationStatus) -> Group:
    """The status for a person: the cause, the query, gateways, streams, groups, pipelines and their stages."""
    parts: list[Any] = [Text(found.cause.sentence, "green" if found.cause.healthy else "bold red")]
    parts += [Text(text) for text in (found.cause.cure, _query(found), _age(found)) if text]
    for heading, table in (
        ("Gateways", _gateways(found)),
        ("Streams", _streams(found)),
        ("Groups", _groups(found)),
        ("Pipelines", _pipelines(found)),
        ("Stages", _stages(found)),
    ):
        if table.row_count:
            parts += [Text(), Text(heading, "bold"), table]
    for error in found.errors:
        parts.append(Text(f"Error: {error}", "red"))
    for one in found.gateways:
        if one.last_error:
            parts.append(Text(f"Gateway {one.gateway} was started {count(one.submissions, 'time')}: {one.last_error}"))
    return Group(*parts)


def _query(found: ApplicationStatus) -> str:
    query = found.query
    parts = [f"query {query.state}"]
    if query.committed_batch is not None:
        age = "" if found.commit_age is None else f" {seconds_text(found.commit_age)} before"
        parts.append(f"batch {query.committed_batch} committed{age}")
    if query.batch is not None and query.since is not None:
        parts.append(f"batch {query.batch} runs for {seconds_text(max(0.0, found.time - query.since))}")
    if "addBatch" in query.durations and (total := query.durations.get("triggerExecution")):
        parts.append(f"batch {query.reported_batch}: {count(query.input_rows, 'row')} in {seconds_text(total / 1000)}")
    if found.query_starts > 1:
        parts.append(f"started {found.query_starts} times")
    if found.schema is not None:
        parts.append(f"schema version {found.schema}")
    return " · ".join(parts)


def _age(found: ApplicationStatus) -> str:
    age = max(0.0, time.time() - found.time)
    driver = f", by the driver {found.driver}" if found.driver else ""
    return f"Figures of {_clock(found.time)} ({seconds_text(age)} old){driver}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(*columns: str) -> Table:
    """A table; a column whose name ends with # has figures."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for name in columns:
        folds = name in ("note", "address", "stream", "after")
        right = name.endswith("#")
        table.add_column(name.rstrip("#"), justify="right" if right else "left", no_wrap=not folds, overflow="fold")
    return table


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds_text(value)


def _gateways(found: ApplicationStatus) -> Table:
    table = _table(
        "gateway", "state", "address", "generation#", "members#", "deliveries#", "calls#", "oldest call#", "queued#",
        "unread files#", "unread events#", "starts#",
    )  # fmt: skip
    for one in found.gateways:
        figures = (one.generation, one.members, one.deliveries, one.requests)
        shown = [count(value) for value in figures] if one.age is not None else [""] * len(figures)
        table.add_row(
            one.gateway,
            Text(one.state, _STYLES.get(one.state, "")),
            one.address,
            *shown,
            _seconds(one.oldest_request),
            count(one.queued),
            count(one.unread_files),
            count(one.unread_events),
            count(one.submissions),
        )
    return table


def _streams(found: ApplicationStatus) -> Table:
    table = _table("stream", "partition#", "first#", "last#", "delayed#", "groups#")
    for one in found.partitions:
        table.add_row(
            one.stream, str(one.partition), count(one.first), count(one.last), count(one.delayed), str(len(one.groups))
        )
    return table


def _groups(found: ApplicationStatus) -> Table:
    table = _table("group", "stream", "partition#", "cursor#", "lag#", "members#", "open for#", "attempts#")
    for one in found.partitions:
        for group in one.groups:
            table.add_row(
                group.group,
                one.stream,
                str(one.partition),
                count(group.cursor),
                count(group.lag),
                count(group.members),
                _seconds(group.oldest),
                count(group.attempts) if group.attempts else "",
            )
    return table


def _pipelines(found: ApplicationStatus) -> Table:
    table = _table("pipeline", "input", "active#", "lag#", "began#", "done#", "failed#", "cancelled#", "dead letters#")
    for one in found.pipelines:
        figures = (one.active, one.lag, one.began, one.done, one.failed, one.cancelled, one.dead_letters)
        table.add_row(one.pipeline, one.input, *(count(value) for value in figures))
    return table


def _stages(found: ApplicationStatus) -> Table:
    table = _table("stage", "pipeline", "after", "members#", "waiting#", "running#", "oldest#", "done#", "note")
    for pipeline in found.pipelines:
        for one in pipeline.stages:
            figures = ["", "", ""] if one.in_spark else [count(one.members), count(one.waiting), count(one.running)]
            table.add_row(
                one.stage,
                pipeline.pipeline,
                ", ".join(one.after) or "the event",
                *figures,
                _seconds(one.oldest),
                count(one.done),
                note(one),
            )
    return table


def note(stage: StageStatus) -> str:
    """The remark on a stage."""
    if stage.unserved_since is not None:
        return f"no member since {_clock(stage.unserved_since)}"
    return "in Spark" if stage.in_spark else ""
