"""The verdict of /healthz: every fault that a snapshot shows has a code, and nothing names the receiver's parts."""

from __future__ import annotations

import json

import pytest

from tests.telemetry.facts import receiver, slot
from wallaroo_spark.status import QueryStatus, ReceiverStatus
from wallaroo_spark.telemetry.health import health

ERROR = "orders at 10.0.0.7: secret"


@pytest.mark.parametrize("state", ["serving", "waiting", "stopping"])
def test_a_receiver_whose_slots_answer_and_whose_query_runs_is_healthy(state: str) -> None:
    found = health(receiver(slot(0, state=state), slot(1)))

    assert found.healthy
    assert found.reasons == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (receiver(slot(), running=False), "driver: not-running"),
        (receiver(slot(), driver_error=ERROR), "driver: round-failed"),
        (receiver(slot(), registry_error=ERROR), "registry: away-from-driver"),
        (receiver(slot(), registry_error=ERROR, driver_error=ERROR), "registry: away-from-driver"),
        (receiver(slot(registry_away=True)), "registry: away-from-workers"),
        (receiver(), "slots: none"),
        (receiver(slot(), slot(1, state="lost")), "slots: not-served"),
        (receiver(slot(), slot(1, state="frozen", error=ERROR)), "slots: not-served"),
        (receiver(slot(), query=QueryStatus("none")), "query: not-started"),
        (receiver(slot(), query=QueryStatus("failed", error=ERROR)), "query: failed"),
        (receiver(slot(), query=QueryStatus("stopped")), "query: stopped"),
        (receiver(slot(), query=QueryStatus("running", watcher_error=ERROR)), "checkpoint: unreadable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_has_a_code_and_tells_no_secrets(status: ReceiverStatus, reason: str) -> None:
    found = health(status)

    assert not found.healthy
    assert found.reasons == [reason]
    text = json.dumps(found.to_json())
    assert all(word not in text for word in ("secret", "orders", "host"))
