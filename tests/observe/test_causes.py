"""The sentence on what each part waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.observe.snapshots import NOW, instance, receiver, slot, stream
from wallaroo_spark.codes import ENTRIES, titles
from wallaroo_spark.observe.causes import LONG_SECONDS, with_causes
from wallaroo_spark.observe.receiver import DoorStatus, QueryStatus, ReadStatus, ReceiverStatus, Refusal, Totals
from wallaroo_spark.runtime.long_jobs import Death

PAGE = ROOT / "docs" / "status.md"
RUNNING = QueryStatus("running", committed_batch=40, committed_at=NOW - 5)
STRANGER = Refusal(NOW - 1, "wrong-cookie", "h:1", "", "")
SLOW = replace(RUNNING, batch=41, phase="writing", since=NOW - 4.2)


def codes(status: ReceiverStatus) -> tuple[str, str, str, str]:
    """The codes of the receiver, and of its first slot, instance and stream."""
    found = with_causes(status)
    return (found.cause.code, found.slots[0].cause.code, found.instances[0].cause.code, found.streams[0].cause.code)


def test_rows_that_arrive_and_are_committed_flow() -> None:
    found = with_causes(receiver())

    assert codes(receiver()) == ("flowing",) * 4
    assert found.healthy
    assert found.cause.sentence == "orders: rows arrive and are committed"


def test_a_slow_sink_is_named_with_its_batch_and_the_credits() -> None:
    status = receiver(
        query=SLOW,
        slots=(slot(rows=50),),
        instances=(instance(rows=50, credits=0),),
        streams=(stream(rows=50, ack_age=4.5),),
    )
    found = with_causes(status)

    assert codes(status) == ("sink-slow",) * 4
    assert found.healthy
    assert found.instances[0].cause.sentence == (
        "orders/shop-1 waits: batch 41 has been in the query and its sink for 4.2 s, credits 0"
    )
    assert found.streams[0].cause.sentence.startswith("orders/shop-1/orders.jsonl waits: batch 41 ")


def test_a_batch_is_slow_when_it_takes_twice_as_long_as_the_one_before_and_the_first_may_take_longer() -> None:
    first = replace(SLOW, committed_batch=None, committed_at=None, batch=0)
    usual = replace(SLOW, durations={"triggerExecution": 3_000})

    assert codes(receiver(query=first, slots=(slot(rows=50),)))[0] == "batch-running"
    assert codes(receiver(query=replace(first, since=NOW - 11)))[0] == "sink-slow"
    assert codes(receiver(query=usual))[0] == "flowing"
    assert codes(receiver(query=replace(usual, since=NOW - 7)))[0] == "sink-slow"


def test_a_failed_query_tells_which_batch_comes_again() -> None:
    cause = with_causes(receiver(query=replace(RUNNING, state="failed", error="boom"))).cause

    assert cause.sentence == "orders waits: the query has failed: boom"
    assert "batch 41 comes again with the same rows" in cause.cure


def test_a_connector_without_data_is_healthy() -> None:
    status = receiver(instances=(instance(last_frame_age=12.3),))
    found = with_causes(status)

    assert codes(status) == ("no-data", "no-data", "no-data", "no-data")
    assert found.healthy
    assert found.instances[0].cause.sentence.startswith("orders/shop-1 waits: it has sent nothing for 12 s")


def test_a_dead_worker_explains_all_that_waits() -> None:
    dead = slot(state="lost", deaths=(Death(NOW - 3, 1, "Python worker exited"),), died=1, submissions=2)
    found = with_causes(receiver(slots=(dead, slot(1, rows=5)), query=SLOW))

    assert [found.cause.code, *(one.cause.code for one in found.slots)] == ["worker-lost"] * 3
    assert "has died 3.0 s ago (death 1, submission 2): Python worker exited" in found.cause.sentence


def test_a_death_that_the_driver_has_not_counted_yet_has_no_number() -> None:
    found = with_causes(receiver(slots=(slot(state="lost", died=0, submissions=1),)))

    assert found.cause.sentence == "orders waits: the worker of slot 0 has died"


def test_a_registry_that_is_away_is_named_without_the_advice_of_its_error() -> None:
    found = with_causes(receiver(registry_error="Redis at h:1 cannot be reached: refused; check that Redis runs"))

    assert found.cause.sentence == (
        "orders waits: the registry does not answer: Redis at h:1 cannot be reached: refused; "
        "connected sessions go on, new ones are told to come back"
    )
    assert found.cause.cure.startswith("Start Redis again")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"running": False, "driver": None}, "not-running"),
        ({"registry_error": "Redis is away", "running": False}, "registry-away"),
        ({"slots": (slot(registry_away=True),)}, "registry-away"),
        ({"slots": (slot(state="frozen"),)}, "worker-frozen"),
        ({"slots": (slot(state="unreachable", error="refused"),)}, "worker-unreachable"),
        ({"slots": (slot(state="starting"),)}, "worker-starting"),
        ({"slots": (slot(state="vacant"),)}, "slot-vacant"),
        ({"driver": None}, "driver-lost"),
        ({"query": QueryStatus("none")}, "query-not-started"),
        ({"query": QueryStatus("stopped")}, "query-stopped"),
        ({"query": QueryStatus("failed", error="boom")}, "query-failed"),
        ({"query": QueryStatus("failed", error="full", error_kind="checkpoint")}, "checkpoint-unwritable"),
        ({"query": replace(RUNNING, watcher_error="no rights")}, "checkpoint-unreadable"),
        ({"query": replace(SLOW, since=NOW - 61)}, "sink-slow"),
        (
            {"query": replace(SLOW, phase="reading"), "slots": (slot(rows=1, read=ReadStatus(3, 2, 4.0)),)},
            "resend-awaited",
        ),
        ({"slots": (slot(pressure="hard"),)}, "memory-full"),
        ({"slots": (slot(sessions=0, refusals=(STRANGER,)),)}, "wrong-cookie"),
        ({"query": SLOW, "slots": (slot(pressure="hard"),)}, "sink-slow"),
        (
            {"query": SLOW, "slots": (slot(sessions=0, refusals=(STRANGER,)),)},
            "wrong-cookie",
        ),
        ({"slots": (slot(sessions=0, refusals=(Refusal(NOW - 1, "wrong-version", "h:1", "", ""),)),)}, "refused"),
        ({"slots": (slot(pressure="soft", ack_age=LONG_SECONDS),)}, "memory-full"),
        ({"report_age": 12.0}, "driver-slow"),
    ],
)
def test_a_fault_has_its_code_and_is_not_healthy(change: dict[str, Any], code: str) -> None:
    found = with_causes(receiver(**change))

    assert (found.cause.code, found.healthy) == (code, False), found.cause


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"instances": (), "totals": Totals()}, "no-connector"),
        ({"query": replace(SLOW, since=NOW - 0.3), "slots": (slot(rows=1),)}, "batch-running"),
        ({"query": replace(SLOW, since=NOW - 59)}, "sink-slow"),
        ({"slots": (slot(rows=1),)}, "trigger-awaited"),
        ({"slots": (slot(refusals=(STRANGER,)),)}, "wrong-cookie"),
        ({"slots": (slot(pressure="soft", ack_age=2.0),)}, "memory-full"),
        ({"slots": (slot(refusals=(Refusal(NOW - 100, "wrong-cookie", "h:1", "", ""),)),)}, "flowing"),
        ({"slots": (slot(refusals=(Refusal(NOW - 1, "superseded", "h:1", "", ""),)),)}, "flowing"),
    ],
)
def test_waiting_for_others_is_healthy(change: dict[str, Any], code: str) -> None:
    found = with_causes(receiver(**change))

    assert (found.cause.code, found.healthy) == (code, True), found.cause


def test_all_causes_that_hold_are_shown_those_that_do_most_harm_first() -> None:
    slots = (
        slot(refusals=(STRANGER,), pressure="hard"),
        slot(1, state="lost"),
        slot(2, state="starting"),
        slot(3, state="lost"),
    )
    found = with_causes(receiver(slots=slots, query=replace(SLOW, watcher_error="no rights"), report_age=7.0))

    assert [cause.code for cause in found.causes] == [
        "worker-lost", "checkpoint-unreadable", "driver-slow", "worker-starting", "sink-slow", "memory-full",
        "wrong-cookie",
    ]  # fmt: skip
    assert [cause.healthy for cause in found.causes] == [False] * 6 + [True]
    assert found.cause == found.causes[0]
    assert "slot 1" in found.cause.sentence


@pytest.mark.parametrize("driver", [None, "host/1/a"])
def test_a_registry_that_is_away_is_not_taken_for_a_driver_that_is_lost(driver: str | None) -> None:
    found = with_causes(receiver(registry_error="refused", driver_error="refused", report_age=30.0, driver=driver))

    assert [cause.code for cause in found.causes] == ["registry-away"]


def test_a_connector_before_its_ok_waits_for_the_query() -> None:
    status = receiver(query=QueryStatus("none"), instances=(instance(state="waiting", credits=0),))

    assert with_causes(status).instances[0].cause.code == "query-not-started"


def test_each_code_has_a_meaning_and_each_meaning_ends() -> None:
    assert all(meaning.endswith(".") for meaning in titles("status").values())


def door(name: str = "kafka", **fields: Any) -> DoorStatus:
    return DoorStatus(0, name, **fields)


def refusal(kind: str, *, times: int = 1, ago: float = 1.0, instance: str = "kafka/billing/0") -> Refusal:
    return Refusal(NOW - ago, kind, "h:1", instance, "why", times)


def test_the_client_of_a_door_tells_how_many_of_its_requests_wait_for_which_batch() -> None:
    waiting = instance("kafka/billing/0", rows=5, credits=0, requests=5)
    slow = with_causes(receiver(query=SLOW, slots=(slot(rows=5),), instances=(waiting,))).instances[0].cause
    idle = with_causes(receiver(slots=(slot(rows=1),), instances=(replace(waiting, rows=1, requests=1),)))

    assert slow.sentence == (
        "orders/kafka/billing/0 waits: batch 41 has been in the query and its sink for 4.2 s; 5 requests wait for "
        "batch 41"
    )
    assert idle.instances[0].cause.sentence.endswith("the next batch has not begun; 1 request waits for batch 41")


def test_requests_that_wait_longer_than_their_clients_are_a_trouble() -> None:
    waiting = door(waiting=12, oldest=31.0, waiting_by={"kafka/billing/0": 10, "kafka/shop/0": 2})
    others = with_causes(receiver(doors=(waiting, door("http", waiting=1, oldest=2.0))))
    alone = with_causes(receiver(doors=(replace(waiting, waiting=10, waiting_by={"kafka/billing/0": 10}),)))

    assert [others.cause.code, others.healthy] == ["door-waits", False]
    assert others.cause.sentence == (
        "orders waits: 12 requests of 2 clients of the door kafka wait for batch 41, the oldest for 31 s"
    )
    assert "10 requests of kafka/billing/0 wait for batch 41" in alone.cause.sentence
    assert with_causes(receiver(doors=(replace(waiting, oldest=29.0),))).healthy
    assert with_causes(receiver(doors=(replace(waiting, waiting=0),))).healthy


@pytest.mark.parametrize(
    ("kind", "code", "healthy"),
    [
        ("http-unauthorized", "door-refused", True),
        ("kafka-message-too-large", "door-refused", True),
        ("kafka-wrong-node", "kafka-wrong-node", False),
        ("kafka-unreadable", "kafka-unreadable", False),
        ("door-given-up", "door-given-up", True),
        ("otlp-body-too-large", "door-refused", True),
        # Clients send these again by themselves.
        ("http-full", "flowing", True),
        ("otlp-send-again", "flowing", True),
        ("http-elsewhere", "flowing", True),
        ("kafka-not-leader-or-follower", "flowing", True),
        ("kafka-request-timed-out", "flowing", True),
        # Any stranger may try a port.
        ("http-no-such-path", "flowing", True),
    ],
)
def test_what_a_door_has_refused_is_a_cause_when_a_person_has_to_act(kind: str, code: str, healthy: bool) -> None:
    found = with_causes(receiver(slots=(slot(refusals=(refusal(kind),)),)))

    assert (found.cause.code, found.healthy) == (code, healthy)
    assert with_causes(receiver(slots=(slot(refusals=(refusal(kind, ago=61.0),)),))).cause.code == "flowing"


def test_many_refusals_of_a_door_are_a_trouble_when_nobody_else_is_connected() -> None:
    def found(times: int, sessions: int) -> ReceiverStatus:
        refused = (refusal("http-unauthorized", times=times, instance=""),)
        return with_causes(receiver(slots=(slot(sessions=sessions, refusals=refused),)))

    assert [found(*given).healthy for given in ((10, 0), (9, 0), (10, 1))] == [False, True, True]
    assert found(10, 0).cause.sentence == (
        "orders waits: a client at h:1 was refused 1.0 s ago (http-unauthorized, 10 times in a row): why"
    )
    assert found(10, 0).cause.cure.startswith("Send the receiver's cookie as the bearer token")


def test_the_page_lists_every_code() -> None:
    """``python -m tests.observe.test_causes`` writes the table of the page anew."""
    assert code_table() in PAGE.read_text(encoding="utf-8")


def code_table() -> str:
    """The table of the codes."""
    rows = [f"| `{code}` | {_verdict(code)} | {meaning} |" for code, meaning in titles("status").items()]
    return "\n".join(["| code | healthy | meaning |", "|---|---|---|", *rows]) + "\n"


def _verdict(code: str) -> str:
    if code == "sink-slow":
        return f"for {LONG_SECONDS:g} s"
    return "yes" if ENTRIES[code].healthy else "no"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition("| code | healthy | meaning |")
    PAGE.write_text(before + code_table() + "\n" + rest.partition("\n\n")[2], encoding="utf-8")
