"""The ends of streams that a worker reports, until a notice has recorded or forgotten them."""

from __future__ import annotations

from dataclasses import replace

from wallaroo_spark.inner.calls import PlanAnswer
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.stream_ends import EndedStreams

ONE, TWO, THREE = (StreamKey("shop-1", number) for number in (1, 2, 3))
NO_ROWS = PlanAnswer(unknown=[THREE])


def ended(retention: float = 60.0) -> EndedStreams:
    """Three streams have ended, the last one without a message."""
    streams = EndedStreams(retention)
    streams.ended(ONE, 5)
    streams.ended(TWO, 7)
    streams.ended(THREE, None)
    return streams


def test_the_end_of_a_stream_without_a_reference_is_not_reported() -> None:
    assert ended().report(NO_ROWS, [], 0) == replace(NO_ROWS, ended={ONE: 5, TWO: 7}, wanted=[])


def test_a_receiver_that_remembers_streams_for_good_reports_no_end_and_refuses_no_stream() -> None:
    streams = ended(0.0)
    streams.told(("token", frozenset([ONE])), [])
    assert not streams.any_unrecorded
    assert streams.report(NO_ROWS, [ONE], 0) == replace(NO_ROWS, wanted=[])
    assert not streams.ask(ONE)


def test_the_end_of_a_forgotten_stream_is_not_reported_again() -> None:
    streams = ended()
    streams.forgotten({ONE: None, TWO: 9, THREE: None})
    assert streams.report(NO_ROWS, [], 0) == replace(NO_ROWS, ended={TWO: 7}, wanted=[])

    streams.forgotten({TWO: None})
    assert not streams.any_unrecorded
    streams.forgotten({TWO: None})
    assert streams.report(NO_ROWS, [], 0) == replace(NO_ROWS, wanted=[])


def test_a_recorded_end_and_a_stream_that_is_open_again_are_not_reported() -> None:
    streams = ended()
    streams.told(("", frozenset()), [ONE])
    streams.opened(TWO)
    assert not streams.any_unrecorded
