"""The committed references of a connector after each frame; without sockets."""

from __future__ import annotations

from wallaroo_spark.connector.sending.stream_references import StreamReferences
from wallaroo_spark.protocol import NOTHING_PROCESSED, Nack, NotifyAck


def known(*references: int) -> StreamReferences:
    made = StreamReferences()
    for stream_id, reference in enumerate(references):
        made.acknowledged(stream_id, reference)
    return made


def test_an_ack_and_a_rewind_replace_the_reference_of_their_stream() -> None:
    made = known(5, 7)
    made.rewound(Nack(0, 1, 3))

    assert (made.get(0), made.get(1), made.get(2)) == (5, 3, None)


def test_a_rewind_to_0_is_a_rewind_to_the_beginning() -> None:
    made = known(5)
    made.rewound(Nack(0, 0, 0))

    assert made.get(0) is None


def test_only_a_successful_answer_without_a_reference_forgets_the_reference() -> None:
    made = known(5, 6, 7)
    made.answered(NotifyAck(False, 0, NOTHING_PROCESSED))
    made.answered(NotifyAck(True, 1, NOTHING_PROCESSED))
    made.answered(NotifyAck(True, 2, 9))

    assert (made.get(0), made.get(1), made.get(2)) == (5, None, 9)
