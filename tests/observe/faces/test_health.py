"""The verdict of /healthz: it follows the causes, every trouble has a code, and nothing names the receiver's parts."""

from __future__ import annotations

import json

import pytest

from tests.observe.facts import receiver, slot
from wallaroo_spark.codes import ENTRIES, titles
from wallaroo_spark.observe.causes import PARTS, health, with_causes
from wallaroo_spark.observe.receiver import QueryStatus, ReceiverStatus

ERROR = "orders at 10.0.0.7: secret"


@pytest.mark.parametrize("state", ["serving", "waiting"])
def test_a_receiver_whose_slots_answer_and_whose_query_runs_is_healthy(state: str) -> None:
    found = health(with_causes(receiver(slot(0, state=state), slot(1))))

    assert found["healthy"]
    assert found["reasons"] == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (receiver(slot(), running=False), "driver: not-running"),
        (receiver(slot(), driver_error=ERROR), "driver: driver-error"),
        (receiver(slot(), report_age=30.0), "driver: driver-slow"),
        (receiver(slot(), registry_error=ERROR), "registry: registry-away"),
        (receiver(slot(registry_away=True)), "registry: registry-away"),
        (receiver(), "slots: slot-vacant"),
        (receiver(slot(), slot(1, state="lost")), "slots: worker-lost"),
        (receiver(slot(), slot(1, state="frozen", error=ERROR)), "slots: worker-frozen"),
        (receiver(slot(), query=QueryStatus("none")), "query: query-not-started"),
        (receiver(slot(), query=QueryStatus("failed", error=ERROR)), "query: query-failed"),
        (receiver(slot(), query=QueryStatus("stopped")), "query: query-stopped"),
        (receiver(slot(), query=QueryStatus("running", watcher_error=ERROR)), "checkpoint: checkpoint-unreadable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_has_a_code_and_tells_no_secrets(status: ReceiverStatus, reason: str) -> None:
    judged = with_causes(status)
    found = health(judged)

    assert not found["healthy"]
    assert not judged.healthy, "the exit status of status and the colour of the page follow the same rule"
    assert found["reasons"] == [reason]
    text = json.dumps(found)
    assert all(word not in text for word in ("secret", "orders", "host"))


def test_every_trouble_is_that_of_a_part() -> None:
    troubles = [entry for entry in ENTRIES.values() if entry.code in titles("status") and not entry.healthy]

    assert {entry.check for entry in troubles} == set(PARTS)
    assert {entry.code for entry in ENTRIES.values() if entry.check} == {entry.code for entry in troubles}
