"""The reason why an application waits: one sentence with a stable code. Pure.

A more specific cause precedes a general one. Source: ``docs/pipelines/see.md#causes``.
"""

from __future__ import annotations

import dataclasses

from wallaroo_spark.codes.groups.durable.causes import APPLICATION_CAUSES
from wallaroo_spark.status.application.model import ApplicationStatus
from wallaroo_spark.status.cause import LONG_SECONDS, seconds_text
from wallaroo_spark.status.model import Cause

CODES = {entry.code: entry.title for entry in APPLICATION_CAUSES.entries}
"""The codes that only applications have, with their meaning."""
HEALTHY = frozenset(["application-idle", "application-flowing", "query-starting"])
"""The codes of an application that works as it should."""
UNSERVED_SECONDS = 60.0
"""Seconds for which a stage may wait without a member. A choice: a worker that is started again comes within them."""
LATE_SECONDS = 30.0
"""Age of an event that no batch has read, or of a call that waits for its commit, from which the query counts as stuck.
A choice: a batch takes well under a second, and some seconds under load."""


def with_cause(status: ApplicationStatus) -> ApplicationStatus:
    """The snapshot with its cause."""
    code, sentence, cure = _find(status)
    return dataclasses.replace(status, cause=Cause(code, f"{status.application}: {sentence}", code in HEALTHY, cure))


def unserved(status: ApplicationStatus) -> list[tuple[str, str, float, int]]:
    """Stages whose deliveries wait without a member: pipeline, stage, seconds, and number of waiting deliveries."""
    return [
        (pipeline.pipeline, stage.stage, max(0.0, status.time - stage.unserved_since), stage.waiting)
        for pipeline in status.pipelines
        for stage in pipeline.stages
        if stage.unserved_since is not None
    ]


def _find(status: ApplicationStatus) -> tuple[str, str, str]:
    return _of_driver(status) or _of_gateways(status) or _of_query(status) or _of_work(status)


def _of_driver(status: ApplicationStatus) -> tuple[str, str, str] | None:
    query = status.query
    if query.state == "failed":
        kind = "checkpoint-unwritable" if query.error_kind == "checkpoint" else "query-failed"
        return kind, f"the query has failed: {query.error}", "Mend that and start the application again; it continues."
    if not status.running:
        return (
            "application-not-running",
            "no driver runs it",
            "Start it with wallaroo-spark run, or check the folder, the name and the registry.",
        )
    if status.registry_error:
        return (
            "registry-away",
            f"the registry does not answer: {status.registry_error}",
            "Start Redis again, or mend the network to it; nothing in it needs to be restored.",
        )
    return None


def _of_gateways(status: ApplicationStatus) -> tuple[str, str, str] | None:
    away = [one for one in status.gateways if one.state in ("down", "starting")]
    if away:
        errors = [one.last_error for one in away if one.last_error]
        gone = ", ".join(one.gateway for one in away)
        why = f"; its last error: {errors[0]}" if errors else ""
        return (
            "gateway-not-served",
            f"{len(away)} of {len(status.gateways)} gateways do not serve ({gone}){why}",
            "Look at the gateway's last error, and whether the cluster has a free task slot for it.",
        )
    return None


def _of_query(status: ApplicationStatus) -> tuple[str, str, str] | None:
    query = status.query
    if query.state in ("none", "starting", "unknown"):
        return "query-starting", "the query starts", ""
    if query.state == "stopped":
        return "query-stopped", "the query was stopped", "Start the application again; it continues."
    waiting = max((one.oldest_request or 0.0 for one in status.gateways), default=0.0)
    running = status.time - query.since if query.batch is not None and query.since is not None else 0.0
    if running > LONG_SECONDS or waiting > LATE_SECONDS:
        batch = f"batch {query.batch} has run for {seconds_text(running)}" if running > LONG_SECONDS else ""
        call = f"a call has waited for its commit for {seconds_text(waiting)}" if waiting > LATE_SECONDS else ""
        return (
            "query-stuck",
            ", and ".join(filter(None, (batch, call))),
            "Look at the batch's job in Spark's UI: a function of a stage that hangs, a file system, or no task slot.",
        )
    return None


def _of_work(status: ApplicationStatus) -> tuple[str, str, str]:
    for pipeline, stage, seconds, waiting in unserved(status):
        if seconds >= UNSERVED_SECONDS:
            since = seconds_text(seconds)
            return (
                "stage-without-member",
                f"stage {stage} of {pipeline} has had no member for {since}, and {waiting} deliveries wait for one",
                f"Start a program that works on it: wallaroo-spark stage {pipeline} {stage} --exec COMMAND.",
            )
    if status.errors:
        return "application-error", status.errors[0], "It is tried again; the log of the driver has more."
    active = sum(one.active for one in status.pipelines)
    lag = sum(one.lag for one in status.pipelines)
    if active or lag or any(one.requests for one in status.gateways):
        calls = sum(one.requests for one in status.gateways)
        return "application-flowing", f"{active} active instances, {lag} records wait, {calls} calls in flight", ""
    return "application-idle", "everything that has come is done", ""
