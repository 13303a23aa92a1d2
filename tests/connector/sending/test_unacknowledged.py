"""The bookkeeping of streams whose messages are not kept, without sockets."""

from __future__ import annotations

from wallaroo_spark.connector.sending.unacknowledged import EphemeralMessages, SourcePosition, UnacknowledgedMessages
from wallaroo_spark.protocol import DRAFT_BE, EncodedRun, encode_run


def run_of(*ids: int, size: int = 1) -> EncodedRun:
    return encode_run(DRAFT_BE, 7, ids, [b"x" * size] * len(ids))


def put(ledger: UnacknowledgedMessages, *ids: int) -> None:
    """One run of messages."""
    ledger.append(run_of(*ledger.next_ids(ids, len(ids))))


class TestSourcePosition:
    def test_a_resume_keeps_the_reader_from_writing_until_it_has_gone_back(self) -> None:
        position = SourcePosition("orders")
        position.resume(3)
        assert position.resend_pending
        assert not position.done
        assert position.take_rewind() == 3
        assert not position.resend_pending
        assert position.done

    def test_it_goes_back_behind_the_acknowledged_reference(self) -> None:
        position = SourcePosition("orders")
        position.resume(None)
        position.take_rewind()
        put(position, 10)
        position.acknowledge(10)
        position.resume(4)
        assert position.take_rewind() == 4
        assert position.next_id(5) == 5

    def test_records_read_again_may_be_acknowledged_already(self) -> None:
        position = SourcePosition("orders")
        position.resume(100)
        position.take_rewind()
        put(position, 120)
        position.acknowledge(200)
        assert position.done
        put(position, 150)
        assert position.done
        put(position, 300)
        assert not position.done

    def test_an_older_acknowledgement_changes_nothing(self) -> None:
        position = SourcePosition("orders")
        position.resume(100)
        position.acknowledge(50)
        assert position.reference == 100

    def test_with_opaque_ids_it_is_done_when_the_last_id_is_acknowledged(self) -> None:
        position = SourcePosition("orders", increasing=False)
        position.resume(None)
        position.take_rewind()
        put(position, 30)
        put(position, 10)
        position.acknowledge(30)
        assert not position.done
        position.acknowledge(10)
        assert position.done

    def test_its_end_comes_again_after_a_resume(self) -> None:
        position = SourcePosition("orders")
        position.ended = position.end_written = True
        position.resume(None)
        assert not position.ended
        position.validate()


class TestEphemeralMessages:
    def test_nothing_is_kept_and_nothing_waits_for_an_acknowledgement(self) -> None:
        stream = EphemeralMessages("ticks", increasing=False)
        stream.append(run_of(stream.next_id(None)))
        assert (stream.kept, stream.done, stream.last) == (0, True, 1)

    def test_after_a_resume_only_new_messages_are_sent(self) -> None:
        stream = EphemeralMessages("ticks", increasing=False)
        put(stream, 5)
        stream.ended = stream.end_written = True
        stream.resume(None)
        assert not stream.resend_pending
        assert stream.settled
