"""The fake application answers as an application does and follows the test; clients are those of the SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.client import Again, Backoff, Client, Event, Output, StageWork, stage
from wallaroo_spark.errors import ArgumentValueError, ConfigurationError, PipelineError, TransportError, WallarooError
from wallaroo_spark.pipelines.controller.messages.events import DeliveryExtended
from wallaroo_spark.testing import FakeApplication, run_function

SHOP = """
kind: Namespace
name: shop
---
kind: Stream
name: orders
namespace: shop
partitions: 2
---
kind: Stream
name: shipments
namespace: shop
---
kind: Stream
name: failed
namespace: shop
---
kind: Pipeline
name: fulfil
namespace: shop
inputStream: orders
triggers: [order.created]
startPoint: {location: beginning}
stages:
  - name: charge
    dependencies: [root_event]
    retry: {maxAttempts: 2, delay: 1h, maxDelay: 1h, deadLetterStream: failed}
  - name: reserve
    run: tests.testing.test_fake_application:reserve
    dependencies: [root_event, charge]
  - name: ship
    dependencies: [reserve]
    streamOutputs: [shipments]
"""
MORE = """
kind: Pipeline
name: count
namespace: shop
inputStream: shipments
startPoint: {location: beginning}
stages:
  - name: count
    run: tests.testing.test_fake_application:count
"""
OUTPUTS = "    streamOutputs: [shipments]\n"
QUICK = Backoff(initial=0.01, maximum=0.1, give_up_after=SECONDS)


def reserve(given: pd.DataFrame) -> Any:
    """A function of a stage, which is given the output of ``charge``."""
    paid = zip(given.root_event, given.charge, strict=True)
    return pd.Series([{"shelf": event["data"]["order"], **receipt} for event, receipt in paid], given.index)


def count(given: pd.DataFrame) -> Any:
    """A function of a stage without an output."""
    return None


def copy(given: pd.DataFrame) -> Any:
    """A function of a stage whose events have no id."""
    events = [[{"type": "copy", "data": event["data"]}] for event in given.root_event]
    return pd.DataFrame({"shipments": events}, given.index)


def around(given: pd.DataFrame) -> Any:
    """A function of a stage whose output stream is its input stream."""
    left = [event["data"]["left"] for event in given.root_event]
    return pd.DataFrame(
        {"shipments": [[{"type": "go", "data": {"left": n - 1}}] if n else [] for n in left]}, given.index
    )


@stage("shop/fulfil", "charge")
def charge(work: StageWork) -> dict[str, Any]:
    assert work.root_event is not None
    if work.root_event.value["order"] < 0:
        raise Again("the bank is closed", delay=3600)
    return {"paid": 30}


@stage("shop/fulfil", "ship")
def ship(work: StageWork) -> Output:
    return Output(streams={"shop/shipments": Event("order.shipped", work.outputs["reserve"])})


def order(number: int) -> Event:
    return Event("order.created", {"order": number}, id=str(number))


@pytest.fixture
def application() -> Iterator[FakeApplication]:
    with FakeApplication(SHOP) as made:
        yield made


@pytest.fixture
def client(application: FakeApplication) -> Iterator[Client]:
    with Client(application.address, source="/test", retry=QUICK, timeout=SECONDS) as made:
        yield made


def test_an_order_goes_through_programs_and_functions(application: FakeApplication, client: Client) -> None:
    client.publish("shop/orders", order(1), Event("order.other"))
    with application.working(charge, ship):
        (instance,) = application.await_ended("shop/fulfil", seconds=SECONDS)
        shipments = application.await_records("shop/shipments", seconds=SECONDS)

    assert (instance.outcome, instance.reason) == ("done", "")
    assert instance.outputs == {"charge": {"paid": 30}, "reserve": {"shelf": 1, "paid": 30}, "ship": None}
    assert [(event.type, event.value) for event in shipments] == [("order.shipped", {"shelf": 1, "paid": 30})]
    assert len(application.records("shop/orders")) == 2


def test_the_delay_of_a_retry_passes_when_the_test_says_so(application: FakeApplication, client: Client) -> None:
    client.publish("shop/orders", order(-1), partition=1)
    with client.stage("shop/fulfil", "charge") as member:
        next(member).nack(reason="the bank is closed")
        application.advance(3600)
        next(member).nack(reason="the bank is closed")

    (instance,) = application.await_ended("shop/fulfil", seconds=SECONDS)
    assert (instance.partition, instance.instance, instance.outcome) == (1, 1, "failed")
    (letter,) = application.await_records("shop/failed", seconds=SECONDS)
    assert letter.value == {"order": -1}
    assert instance.reason.endswith("the last one: the bank is closed")
    assert (letter.extensions["failedreason"], letter.extensions["failedattempts"]) == ("the bank is closed", "2")


def test_a_gateway_that_is_started_again_has_the_same_address_and_records(
    application: FakeApplication, client: Client
) -> None:
    address = application.address
    client.publish("shop/orders", order(1))
    with client.stage("shop/fulfil", "charge") as member:
        first = next(member)
        application.restart_gateway()
        second = next(member)
        second.ack({"paid": 1})

    assert application.address == address
    assert (first.instance, second.instance) == (1, 1)
    assert client.publish("shop/orders", order(1)) == [client.publish("shop/orders", order(1))[0]]
    assert len(application.records("shop/orders")) == 1


def test_further_documents_are_applied_while_it_runs(application: FakeApplication, client: Client) -> None:
    application.apply(MORE)
    client.publish("shop/shipments", Event("order.shipped"))

    (instance,) = application.await_ended("shop/count", seconds=SECONDS)
    assert instance.outputs == {"count": None}
    with pytest.raises(ConfigurationError, match="partitions"):
        application.apply(SHOP.replace("partitions: 2", "partitions: 1"))


def test_events_of_a_function_in_all_partitions_are_written(application: FakeApplication, client: Client) -> None:
    """Instances of different partitions have the same numbers."""
    application.apply(
        MORE.replace("inputStream: shipments", "inputStream: orders").replace(":count", ":copy") + OUTPUTS
    )
    for partition in (0, 1):
        client.publish("shop/orders", order(partition), partition=partition)

    shipments = application.await_records("shop/shipments", 2, seconds=SECONDS)
    assert sorted(event.value["order"] for event in shipments) == [0, 1]


def test_a_loop_of_a_pipeline_ends_when_its_function_says_so(application: FakeApplication, client: Client) -> None:
    application.apply(MORE.replace(":count", ":around") + OUTPUTS)
    client.publish("shop/shipments", Event("go", {"left": 3}))

    events = application.await_records("shop/shipments", 4, seconds=SECONDS)
    application.await_ended("shop/count", 4, seconds=SECONDS)
    assert [event.value["left"] for event in events] == [3, 2, 1, 0]


def test_an_instance_ends_with_its_stages_after_one_of_them_was_renamed(
    application: FakeApplication, client: Client
) -> None:
    """A program of the former stage may join as long as an instance needs it, in the partition that has it."""
    client.publish("shop/orders", order(1), partition=1)
    (begun,) = application.instances("shop/fulfil")
    assert begun.outcome is None
    application.apply(SHOP.replace("name: charge", "name: pay").replace("root_event, charge]", "root_event, pay]"))
    client.publish("shop/orders", order(2), partition=0)
    with client.stage("shop/fulfil", "pay") as member:
        assert next(member).partition == 0

    with client.stage("shop/fulfil", "charge") as member:
        work = next(member)
        assert (work.partition, work.instance) == (1, 1)
        work.ack({"paid": 30})
        with application.working(ship):
            (instance,) = application.await_ended("shop/fulfil", seconds=SECONDS)
        assert instance.outputs["charge"] == {"paid": 30}
        with pytest.raises(PipelineError, match="the stage is not declared any more"):
            next(member)
    with client.stage("shop/fulfil", "charge") as member, pytest.raises(PipelineError, match=r"has no stage '?charge"):
        next(member)


def test_a_client_with_a_token_may_do_what_the_token_permits() -> None:
    token = "\n---\nkind: Token\nname: seller\npermissions: [{access: publish}]\n"
    with FakeApplication(SHOP + token) as application:
        with (
            pytest.raises(ConfigurationError, match="the call has no token"),
            Client(application.address, retry=QUICK) as nobody,
        ):
            nobody.publish("shop/orders", order(1))
        with Client(application.address, token=application.create_token("seller"), retry=QUICK) as seller:
            seller.publish("shop/orders", order(1))
        with pytest.raises(PipelineError, match="token sellr is not declared: did you mean seller"):
            application.create_token("sellr")


def test_a_wait_that_is_over_says_what_the_instances_wait_for(application: FakeApplication, client: Client) -> None:
    with pytest.raises(TransportError, match="no instance is active; compare the type"):
        application.await_ended("shop/fulfil", seconds=0)
    client.publish("shop/orders", order(1), partition=0)
    with pytest.raises(TransportError, match="1 are active; instance 1 of partition 0 waits for a result of charge"):
        application.await_ended("shop/fulfil", seconds=0)
    with pytest.raises(TransportError, match="has 0 events after 0 s, and the test needs 1"):
        application.await_records("shop/shipments", seconds=0)


def test_documents_and_names_that_cannot_work_are_refused(application: FakeApplication) -> None:
    with pytest.raises(ConfigurationError, match="inputStream"):
        FakeApplication(SHOP.replace("inputStream: orders", "inputStream: order"))
    with pytest.raises(PipelineError, match="did you mean shop/orders"):
        application.records("shop/order")
    with pytest.raises(ConfigurationError, match="use it in a with statement"):
        FakeApplication(SHOP).records("shop/orders")


def test_an_error_of_a_stage_that_cannot_be_joined_is_raised(application: FakeApplication) -> None:
    @stage("shop/fulfil", "chrage")
    def misspelt(work: StageWork) -> None: ...

    with pytest.raises(PipelineError, match="chrage"), application.working(misspelt):
        application.await_ended("shop/fulfil", seconds=SECONDS)


def test_a_function_is_given_rows_and_its_results_are_read_as_in_spark() -> None:
    found = run_function(reserve, [order(1), order(2)], {"charge": [{"paid": 30}, {"paid": 40}]})

    assert [one.output for one in found] == [{"shelf": 1, "paid": 30}, {"shelf": 2, "paid": 40}]
    assert [(one.streams, one.problem) for one in found] == [({}, "")] * 2


def test_the_events_and_the_problems_of_a_function_are_in_its_results() -> None:
    def shipped(given: pd.DataFrame) -> pd.DataFrame:
        numbers = [event["data"]["order"] for event in given.root_event]
        if min(numbers) < 0:
            raise ValueError(f"order {min(numbers)} is negative")
        return pd.DataFrame({"shipments": [[{"type": "order.shipped", "data": n}] for n in numbers]}, given.index)

    good, bad = run_function(shipped, [order(1), order(-1)], streams=["shipments"], output_required=False)
    (missing,) = run_function(shipped, [order(1)], streams=["shipments"])

    assert [(event.type, event.value) for event in good.streams["shipments"]] == [("order.shipped", 1)]
    assert (bad.output, bad.streams, bad.problem) == (None, {}, "ValueError: order -1 is negative")
    assert "returned none" in missing.problem
    with pytest.raises(ArgumentValueError, match="1 outputs of stage charge for 2 events"):
        run_function(reserve, [order(1), order(2)], {"charge": [{"paid": 30}]})


LIMITED = SHOP.replace("    retry: {maxAttempts: 2", "    deliveryTimeout: 60s\n    retry: {maxAttempts: 9").replace(
    "name: orders\nnamespace: shop\n",
    "name: orders\nnamespace: shop\ndeliveryTimeout: 60s\n"
    "retry: {maxAttempts: 2, delay: 0s, deadLetterStream: failed}\n",
)


def test_a_worker_that_hangs_and_answers_pings_loses_its_work_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeApplication(LIMITED) as application, Client(application.address, retry=QUICK, timeout=SECONDS) as client:
        memory, seen = application._running(), []
        write = memory.write

        def watched(events: Any) -> int:
            seen.extend(events)
            return write(events)

        monkeypatch.setattr(memory, "write", watched)
        client.publish("shop/orders", order(1), partition=0)
        with client.stage("shop/fulfil", "charge", concurrency=1) as hangs:
            hung = next(hangs)
            application.advance(50)
            hung.extend()
            assert memory.wait(lambda: any(isinstance(one, DeliveryExtended) for _, one in list(seen)), SECONDS)
            application.advance(50)
            assert not hung.over
            application.advance(200)
            with client.stage("shop/fulfil", "charge") as works:
                again = next(works)
                assert again.instance == hung.instance
                again.nack(3600, reason="once more")
            # It settles it late, and takes part again.
            with pytest.raises(WallarooError, match="deliveryTimeout"):
                hung.ack({"paid": 1})
            application.advance(7200)
            next(hangs).ack({"paid": 30})
        with application.working(ship):
            (instance,) = application.await_ended("shop/fulfil", seconds=SECONDS)
    assert instance.outputs["charge"] == {"paid": 30}


def test_a_function_that_works_for_long_extends_its_time_from_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    late, extended, seen, works = threading.Event(), threading.Event(), [], []

    @stage("shop/fulfil", "charge")
    def charge(work: StageWork) -> dict[str, int]:
        works.append(work)
        assert late.wait(SECONDS)
        work.extend_in_thread()
        assert extended.wait(SECONDS)
        return {"paid": 30}

    with FakeApplication(LIMITED) as application, Client(application.address, retry=QUICK, timeout=SECONDS) as client:
        memory = application._running()
        write = memory.write
        monkeypatch.setattr(memory, "write", lambda events: (seen.extend(events), write(events))[1])
        with application.working(charge, ship):
            client.publish("shop/orders", order(1), partition=0)
            eventually(lambda: works)
            application.advance(50)
            late.set()
            assert memory.wait(lambda: any(isinstance(one, DeliveryExtended) for _, one in list(seen)), SECONDS)
            application.advance(50)
            extended.set()
            (instance,) = application.await_ended("shop/fulfil", seconds=SECONDS)
    assert (instance.outputs["charge"], len(works)) == ({"paid": 30}, 1)


def test_a_poisoned_event_of_a_group_is_set_aside_and_the_others_arrive() -> None:
    with FakeApplication(LIMITED) as application, Client(application.address, retry=QUICK, timeout=SECONDS) as client:
        client.publish("shop/orders", *(order(number) for number in range(1, 6)), partition=0)
        done: list[int] = []
        with client.consume("shop/orders", group="billing", start="beginning") as deliveries:
            for delivery in deliveries:
                if any(event.value["order"] == 3 for event in delivery.events):
                    delivery.nack(reason="poison")
                    continue
                with delivery:
                    done += [event.value["order"] for event in delivery.events]
                if 5 in done:
                    break
        (letter,) = application.await_records("shop/failed", seconds=SECONDS)
        assert done == [1, 2, 4, 5]
        assert (letter.value, letter.extensions["failedgroup"]) == ({"order": 3}, "billing")
        assert letter.extensions["failedreason"] == "poison"


def test_groups_are_moved_and_deleted_and_deliveries_taken_away_by_programs() -> None:
    with FakeApplication(LIMITED) as application, Client(application.address, retry=QUICK, timeout=SECONDS) as client:
        client.publish("shop/orders", *(order(number) for number in range(1, 4)), partition=0)
        with client.consume("shop/orders", group="billing", start="beginning") as first:
            with next(first):
                pass
            assert client.change_group("shop/orders", "billing", "move", 2) == 2
            assert next(first).first == 2
            assert client.change_group("shop/orders", "billing", "take_away") == 1
        with client.stage("shop/fulfil", "charge") as works:
            taken = next(works)
            client.take_away("shop/fulfil", 0, taken.instance)
            client.cancel("shop/fulfil", 0, taken.instance)
        with pytest.raises(PipelineError, match="no member has a delivery"):
            client.take_away("shop/fulfil", 0, taken.instance)
        client.change_group("shop/orders", "billing", "delete")
        with pytest.raises(PipelineError, match="there is no group billing"):
            client.change_group("shop/orders", "billing", "pause")
