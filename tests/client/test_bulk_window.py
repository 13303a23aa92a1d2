"""The window of a bulk publish: requests, answers in any order, and outcomes in the order of the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client import Event, PublishedEvent, RefusedEvent
from wallaroo_spark.client.window import BulkWindow, WindowLimits
from wallaroo_spark.errors import ConfigurationError, PipelineError, TransportError


def window_of(count: int, batch: int = 2, **limits: int) -> BulkWindow:
    """A window with so many events, of which no more come."""
    made = BulkWindow(make, batch, WindowLimits(**limits))
    for number in range(count):
        event = Event("t", id=str(number))
        message = event.to_message("/test")
        made.add(event, message, message.ByteSize())
    made.finished = True
    return made


def make(messages: Sequence[Any]) -> pb.PublishRequest:
    """A request."""
    return pb.PublishRequest(stream="shop/orders", events=messages)


def sent(window: BulkWindow) -> list[pb.PublishRequest]:
    """All requests that may be sent."""
    found = []
    while (request := window.next_request()) is not None:
        found.append(request)
    return found


def ids(requests: Sequence[pb.PublishRequest]) -> list[list[str]]:
    """The ids of the events of requests."""
    return [[event.id for event in request.events] for request in requests]


def answer(request: pb.PublishRequest) -> pb.PublishReply:
    """The answer to a request: the offset of an event is its id."""
    places = [pb.Place(partition=0, offset=int(event.id)) for event in request.events]
    return pb.PublishReply(request=request.request, places=places)


def problem(request: pb.PublishRequest, code: str) -> pb.PublishReply:
    """The answer to a request that is refused."""
    return pb.PublishReply(request=request.request, problem=pb.Problem(code=code, text="the reason"))


def taken(window: BulkWindow) -> list[PublishedEvent | RefusedEvent]:
    """The outcomes that are there."""
    found = []
    while (outcome := window.take()) is not None:
        found.append(outcome)
    return found


def test_outcomes_come_in_the_order_of_the_events_whatever_the_order_of_the_answers() -> None:
    window = window_of(5)
    requests = sent(window)
    assert ids(requests) == [["0", "1"], ["2", "3"], ["4"]]

    window.answered(answer(requests[2]))
    window.answered(answer(requests[0]))
    assert [one.index for one in taken(window)] == [0, 1]
    assert not window.over
    window.answered(answer(requests[1]))

    rest = taken(window)
    assert [(one.index, one.place.offset) for one in rest if isinstance(one, PublishedEvent) and one.place] == [
        (2, 2),
        (3, 3),
        (4, 4),
    ]
    assert window.over


def test_a_lost_connection_sends_the_same_requests_again_in_their_order() -> None:
    window = window_of(7, requests=3)
    first = sent(window)
    window.answered(answer(first[1]))
    window.lost()

    again = sent(window)

    assert ids(again) == [["0", "1"], ["4", "5"], ["6"]]
    assert again[:2] == [first[0], first[2]]


def test_there_is_room_until_as_much_waits_as_is_permitted() -> None:
    window = window_of(4, events=4)
    assert not window.room
    first, _ = sent(window)
    window.answered(answer(first))
    assert not window.room, "its outcomes were not taken yet"
    taken(window)
    assert window.room

    assert not window_of(1, bytes=1).room
    assert ids(sent(window_of(3, batch=10, request_bytes=1))) == [["0"], ["1"], ["2"]]
    assert ids(sent(window_of(9, requests=2))) == [["0", "1"], ["2", "3"]]


def test_a_request_with_an_invalid_event_is_divided_until_the_event_is_alone() -> None:
    window = window_of(8, batch=8)
    for _ in range(20):
        for request in sent(window):
            bad = "5" in ids([request])[0]
            window.answered(problem(request, "request-invalid") if bad else answer(request))
    found = taken(window)

    assert window.over
    assert [one.index for one in found] == list(range(8))
    [refused] = [one for one in found if isinstance(one, RefusedEvent)]
    assert (refused.index, refused.event.id, refused.error.message) == (5, "5", "the reason")


def test_a_problem_of_the_gateway_is_one_of_the_connection_and_a_problem_of_all_requests_ends_the_call() -> None:
    window = window_of(2)
    [request] = sent(window)
    with pytest.raises(TransportError, match="the reason") as raised:
        window.answered(problem(request, "gateway-busy"))
    assert raised.value.code == "gateway-busy"
    window.lost()
    assert sent(window) == [request]
    with pytest.raises(ConfigurationError, match="the reason"):
        window.answered(problem(request, "token-refused"))
    with pytest.raises(PipelineError, match="the reason"):
        window.answered(problem(request, "object-unknown"))


@settings(max_examples=30)
@given(st.data())
def test_every_event_has_one_outcome_whatever_is_lost(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    window = window_of(count, batch=data.draw(st.integers(1, 5)), requests=data.draw(st.integers(1, 4)))
    found: list[PublishedEvent | RefusedEvent] = []
    for _ in range(100):
        requests = data.draw(st.permutations(sent(window)))
        answered = requests if data.draw(st.booleans()) else requests[: len(requests) // 2]
        for request in answered:
            invalid = any(int(id) in bad for id in ids([request])[0])
            window.answered(problem(request, "request-invalid") if invalid else answer(request))
        if len(answered) < len(requests):
            window.lost()
        found += taken(window)
        if window.over:
            break
    else:
        window.lost()
        return
    assert [one.index for one in found] == list(range(count))
    assert {one.index for one in found if isinstance(one, RefusedEvent)} == bad
