"""A query of which a process did not start in time is started again; any other failure ends the application.

And the status while the registry does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wallaroo_spark.engine import Application
from wallaroo_spark.engine.application import application as module
from wallaroo_spark.engine.observer import gateway_status
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.runtime.long_jobs import JobRecord

SLOW = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back."


class Query:
    """A query that ends with an error."""

    def __init__(self, error: str) -> None:
        self.error = error

    def awaitTermination(self) -> None:
        raise RuntimeError(self.error)

    def stop(self) -> None:
        """It has ended."""


def failing(*errors: str) -> tuple[Application, Callable[[], int]]:
    """An application whose queries end with these errors, one after another; and the number of those not started."""
    left = [Query(error) for error in errors]
    application: Any = Application(None, "/data/shop")
    application._make_query = lambda: left.pop(0)
    application._query = left.pop(0)
    return application, lambda: len(left)


def test_a_query_with_a_slow_process_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    application, left = failing(SLOW, SLOW, "java.io.IOException: no room")

    application._await_query()

    assert left() == 0
    first, second = [record.getMessage() for record in caplog.records if "started again" in record.getMessage()]
    assert "(start 2 of at most 5)" in first
    assert "(start 3 of at most 5)" in second
    assert "start the application again" not in first
    with pytest.raises(PipelineError, match=r"the query failed: IOException: no room; .*continues") as failed:
        application.await_end(0)
    assert failed.value.code == "query-failed"


def test_that_has_an_end() -> None:
    application, left = failing(*[SLOW] * (module.MOST_STARTS + 1))

    application._await_query()

    assert left() == 1
    with pytest.raises(PipelineError, match="failed to connect back"):
        application.await_end(0)


def test_without_an_answer_of_the_registry_the_state_of_a_running_gateway_is_unknown() -> None:
    found = [gateway_status(job, None, known=False) for job in (JobRecord(0, running=True), JobRecord(1))]

    assert [one.state for one in found] == ["unknown", "down"]
