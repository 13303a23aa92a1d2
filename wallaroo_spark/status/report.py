"""The driver's report: the facts that only the driver knows, for every program that asks for a receiver's status.

The driver writes it to the registry about once a second. It is bounded: each slot has its last deaths, and all slots
together at most :data:`DEATHS_IN_ALL`. It has no secret, because each reader of the registry can read it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from wallaroo_spark.status.model import Death, QueryStatus
from wallaroo_spark.status.schema import SCHEMA, record_from_json, record_to_json

DEATHS_IN_ALL = 100
"""Maximum number of deaths in one report. A choice: with their errors some 50 KiB."""
ERROR_LENGTH = 500
"""Characters of a job's last error. A choice that bounds the report."""


@dataclass(frozen=True)
class JobReport:
    """The Spark job of one slot."""

    slot: int
    """The slot."""
    running: bool = False
    """Whether Spark runs the job now."""
    submission: int = 0
    """The registry's number of the last submission."""
    submissions: int = 0
    """How many times the job was submitted."""
    died: int = 0
    """Number of times that it ended without a request."""
    deaths: tuple[Death, ...] = ()
    """The last of these ends, the oldest first."""
    last_error: str = ""
    """Its last error; empty when there was none."""


@dataclass(frozen=True)
class DriverReport:
    """The driver's report."""

    at: float
    """When it was made, on the driver's clock, in seconds since 1970 UTC."""
    query: QueryStatus = field(default_factory=QueryStatus)
    """The query."""
    jobs: tuple[JobReport, ...] = ()
    """The jobs of the slots."""
    lag_rows: int | None = None
    """Held rows behind the last planned offset, by Spark's last report on the query."""
    lag_bytes: int | None = None
    """Memory of these rows in bytes."""
    error: str = ""
    """Why the driver's last round has failed; empty when it has not."""
    page: str = ""
    """The address of the status page; empty when there is none."""

    def to_text(self) -> str:
        """The report as text for the registry."""
        return json.dumps({"schema": SCHEMA, **record_to_json(_bounded(self))})


class JobState(Protocol):
    """The state of a slot's job; see ``wallaroo_spark.slots.long_jobs.JobRecord``."""

    number: int
    running: bool
    submission: int
    submissions: int
    died: int
    last_error: str

    @property
    def deaths(self) -> Iterable[Any]:
        """The last deaths, each with ``at``, ``submission`` and ``error``."""


def job_report(job: JobState) -> JobReport:
    """The report on one job."""
    deaths = tuple(Death(death.at, death.submission, death.error) for death in job.deaths)
    error = job.last_error[:ERROR_LENGTH]
    return JobReport(job.number, job.running, job.submission, job.submissions, job.died, deaths, error)


def report_of(text: str | None) -> DriverReport | None:
    """The report in a text from the registry; None for no text, and for one that another release has written."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        return record_from_json(DriverReport, value) if value.get("schema") == SCHEMA else None
    except (ValueError, AttributeError):
        return None


def _bounded(report: DriverReport) -> DriverReport:
    """The report with only the newest deaths, when there are very many."""
    every = sorted((death.at for job in report.jobs for death in job.deaths), reverse=True)
    if len(every) <= DEATHS_IN_ALL:
        return report
    return dataclasses.replace(report, jobs=tuple(_since(report.jobs, every[DEATHS_IN_ALL - 1])))


def _since(jobs: Iterable[JobReport], at: float) -> Iterable[JobReport]:
    for job in jobs:
        yield dataclasses.replace(job, deaths=tuple(death for death in job.deaths if death.at >= at))
