"""The connection to one publisher: the limit of an attempt, and the reasons that the error of an outage names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.pubsub.subscribing.scripted import Catalog, Place, Record
from wallaroo_spark.errors import PubSubError, TransportError
from wallaroo_spark.pubsub.messages import VERSION, SubscriberHello
from wallaroo_spark.pubsub.subscribing import partition_link
from wallaroo_spark.pubsub.subscribing.partition_link import LinkLost, PartitionLink
from wallaroo_spark.pubsub.subscribing.settings import SubscriptionSettings

ADDRESS = "127.0.0.1:7100"
BROKEN, REFUSED, SILENT = (f"the publisher at {ADDRESS} {reason}" for reason in ("broke it", "refuses", "is silent"))


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_link(clock: Clock) -> Callable[[float], PartitionLink]:
    def make(lost_after: float) -> PartitionLink:
        catalog = Catalog({"totals": Record(1)}, {0: Place(ADDRESS)})
        settings = SubscriptionSettings("totals", registry=catalog, lost_after=lost_after)
        return PartitionLink(catalog, settings, 0, clock=clock)

    return make


def outage(link: PartitionLink, clock: Clock, *reasons: str) -> str:
    """The error of an outage with these reasons, a second apart; the last one comes after ``lost_after``."""
    *before, last = reasons
    for reason in before:
        link.trouble(reason)
        clock.now += 1
    clock.now += 60
    with pytest.raises(PubSubError) as caught:
        link.trouble(last)
    return caught.value.message


async def test_an_outage_names_its_last_reason_and_those_before_it(make_link: Any, clock: Clock) -> None:
    found = outage(make_link(60), clock, BROKEN, REFUSED, BROKEN, SILENT)
    assert f"(lost_after); {SILENT}; before that: {BROKEN}; before that: {REFUSED}" in found
    assert outage(make_link(60), clock, SILENT, SILENT).endswith(f"(lost_after); {SILENT}")


async def test_it_names_few_of_many(make_link: Any, clock: Clock) -> None:
    link = make_link(60)
    found = outage(link, clock, *(f"reason {number}" for number in range(20)))
    assert found.endswith("; reason 19; before that: reason 18; before that: reason 17")
    assert len(link._reasons) == partition_link.REMEMBERED_REASONS


async def test_reasons_of_an_outage_that_has_ended_are_not_named(make_link: Any, clock: Clock) -> None:
    link = make_link(60)
    link.trouble(BROKEN)
    link.progressed()
    assert outage(link, clock, REFUSED, SILENT).endswith(f"; {SILENT}; before that: {REFUSED}")


async def test_an_attempt_has_its_whole_time_also_when_the_outage_ends_before(
    make_link: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    async def connect(*_: Any, **given: Any) -> None:
        limits.append(given["timeout"])
        clock.now += 0.4
        raise TransportError("nobody answers")

    monkeypatch.setattr(partition_link, "connect", connect)
    monkeypatch.setattr(partition_link, "PAUSE_SECONDS", 0.0)
    link = make_link(1.0)

    async def fail() -> None:
        with pytest.raises(LinkLost) as lost:
            await link.connect(SubscriberHello(VERSION, "", "totals", 0, "test", "", ()))
        link.trouble(str(lost.value))
        await link.pause()

    await fail()
    await fail()
    with pytest.raises(PubSubError, match=r"is lost: .* nobody answers"):
        await fail()
    assert limits == [partition_link.CONNECT_SECONDS] * 3
