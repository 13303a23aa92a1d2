"""The stored format: the same bytes for ever, older entries are read, newer ones are refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest

from tests.pipelines.controller.one_key import ORDERS, Key, fulfil, record
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import partition_plans
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery, StageDelivery
from wallaroo_spark.pipelines.controller.states import DeliveryState
from wallaroo_spark.pipelines.controller.stored.encoding import CLASSES, decode, encode
from wallaroo_spark.pipelines.controller.stored.key_state import Group, Instance, OpenDelivery, StageProgress
from wallaroo_spark.pipelines.schema.cloud_event import Payload
from wallaroo_spark.pipelines.schema.declarations import (
    PipelineDeclaration,
    RetryPolicy,
    StageDeclaration,
    StreamDeclaration,
)

INSTANCE = Instance(
    2, 1_000, record(7), {"charge": StageProgress(OpenDelivery(DeliveryState.DONE, 1_000, 3, 1, "anna"), Payload(b"p"))}
)

GOLDEN: list[tuple[Any, str]] = [
    (ORDERS, "01c70e0192ab73686f702f6f726465727300"),
    (GroupDelivery("billing", 9), "01c70a0592a762696c6c696e6709"),
    (DeliveryState.DELIVERED, "01c70b0f91a964656c697665726564"),
    (
        INSTANCE,
        "01c75e199502cd03e8c7280295a137a57465737473b273686f702e6f726465722e63726561746564c40964617461206f6620379081a6"
        "636861726765c7221892c7161297c7060f91a4646f6e65cd03e80301a4616e6e610000c7050392c40170a000",
    ),
]


@pytest.mark.parametrize(("value", "data"), GOLDEN)
def test_stored_bytes_are_the_same_in_every_version(value: Any, data: str) -> None:
    assert encode(value).hex() == data
    assert decode(bytes.fromhex(data)) == value


def test_every_class_of_state_and_messages_has_one_number() -> None:
    assert len(set(CLASSES.values())) == len(CLASSES)
    assert all(0 < number < 128 for number in CLASSES)


@pytest.mark.parametrize("value", [INSTANCE, Group(True, 3, ["anna"], 4, 5), fulfil(), ORDERS, None, (1, (2, b"x"))])
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    again = decode(encode(value))

    assert again == value
    assert type(again) is type(value)
    assert encode(again) == encode(value)


def test_events_and_instructions_are_read_as_they_were_written() -> None:
    delivery = StageDelivery("shop/fulfil", 1, "charge", 2)
    for value in (
        e.DeliveryAcked(None, "anna", delivery, Payload(b"x")),
        e.CarriedIn(ORDERS, 3, decode(encode(i.CarryOut(ORDERS, 1, None))).message),  # type: ignore[arg-type]  # any value
        i.InstanceEnded("shop/fulfil", 1, i.Outcome.DONE, 1, 2),
    ):
        assert decode(encode(value)) == value


def test_an_entry_with_fewer_fields_is_read_with_their_defaults() -> None:
    inner = msgpack.packb([msgpack.ExtType(15, msgpack.packb(["waiting"])), 1_000])
    older = b"\x01" + msgpack.packb(msgpack.ExtType(18, inner))

    assert decode(older) == OpenDelivery(DeliveryState.WAITING, 1_000)


def test_fields_with_defaults_stand_last_so_that_older_entries_can_be_read() -> None:
    for kind in CLASSES.values():
        if dataclasses.is_dataclass(kind):
            with_default = [
                field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
                for field in dataclasses.fields(kind)
            ]
            assert with_default == sorted(with_default), kind


@pytest.mark.parametrize("data", [b"", b"\x02\x90", b"\x01" + msgpack.packb(msgpack.ExtType(127, b"\x90"))])
def test_an_unknown_format_is_refused(data: bytes) -> None:
    with pytest.raises(PipelineError, match="version"):
        decode(data)


def test_a_value_without_a_number_is_refused() -> None:
    with pytest.raises(PipelineError, match="a complex cannot be stored"):
        encode(1j)


def test_the_state_of_an_active_instance_is_small() -> None:
    key = Key(fulfil(max_parallel=1_000))
    key.publish(*(record(number) for number in range(1, 101)))
    instances = [len(name) + len(value) for name, value in key.stored.items() if name[:1] in (b"i", b"I", b"W")]

    # 100 instances, each with its root event of 60 bytes, and two waiting stages.
    assert sum(instances) < 100 * 400
    assert len(key.stored[b"h" + encode(0)]) < 2_000


def test_the_plan_of_a_partition_has_the_facts_of_its_declarations() -> None:
    orders = StreamDeclaration(name="orders", namespace="shop", idempotency_window=5.0)
    stages = (
        StageDeclaration(name="charge", stream_outputs=("paid",)),
        StageDeclaration(
            name="ship",
            after=("charge",),
            dependencies=("root_event", "charge"),
            run="shop.ship:run",
            retry=RetryPolicy(max_attempts=3, delay=0.5, max_delay=2.0, dead_letter_stream="other/dead"),
        ),
        StageDeclaration(name="tidy", after=("ship",)),
    )
    pipeline = PipelineDeclaration(name="fulfil", namespace="shop", input_stream="orders", stages=stages)
    other = PipelineDeclaration(name="else", namespace="shop", input_stream="paid", stages=stages[:1])
    dead = StreamDeclaration(name="dead", namespace="other", partitions=3)

    paid = StreamDeclaration(name="paid", namespace="shop")

    plan = partition_plans([orders, paid, pipeline, other, dead])["shop/orders"]

    (found,) = plan.pipelines
    charge, ship, tidy = found.stages
    assert (plan.window_millis, found.name, found.max_parallel) == (5_000, "shop/fulfil", 50)
    assert (charge.given_root, charge.output_required, charge.stream_outputs) == (True, True, ("shop/paid",))
    assert (ship.after, ship.dependencies, ship.given_root, ship.function) == ((), ("charge",), True, "shop.ship:run")
    assert [ship.retry.retry_delay(attempt) for attempt in (1, 2, 3, 4, 99)] == [500, 1000, 2000, 2000, 2000]
    assert (ship.dead_letter, ship.retry.dead_letter_key(7).partition) == ("other/dead", 1)
    assert (tidy.given_root, tidy.output_required) == (False, False)
