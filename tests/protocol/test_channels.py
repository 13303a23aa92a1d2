"""Which frame travels on which channel, and what a worker refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.revisions import revisions
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    V3,
    EosMessage,
    Error,
    Flags,
    Hello,
    Message,
    Notify,
    Revision,
    encode_run,
)
from wallaroo_spark.protocol.channels import MESSAGE_BYTES, ChannelRules, is_ephemeral, split
from wallaroo_spark.protocol.faults import Fault

drafts = pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=["draft-le", "draft-be"])


def hello(revision: Revision) -> bytes:
    return revision.encode(Hello("0.0.1", b"hush", "orders", "shop-1"))


def messages(revision: Revision, stream_id: int, *payloads: bytes, flags: int = 0) -> bytes:
    return encode_run(revision, stream_id, range(1, len(payloads) + 1), payloads, flags).data


def greeted(revision: Revision) -> ChannelRules:
    rules = ChannelRules(revision)
    rules.session_frame(hello(revision), 1, 0)
    return rules


def fault(work: Callable[[], object]) -> Fault:
    with pytest.raises(RemoteProtocolError) as caught:
        work()
    found = caught.value.fields["fault"]
    assert isinstance(found, Fault)
    return found


class TestSplit:
    @revisions
    @given(sizes=st.lists(st.integers(0, 90), min_size=1, max_size=30), most=st.integers(1, 200))
    def test_a_message_has_whole_frames_and_no_more_bytes_than_fit(
        self, revision: Revision, sizes: list[int], most: int
    ) -> None:
        data = messages(revision, 7, *(b"x" * size for size in sizes))
        single = {len(messages(revision, 7, b"x" * size)) for size in sizes}
        parts = list(split(revision, data, most))
        assert b"".join(parts) == data
        for part in parts:
            ChannelRules(revision).stream_frames(7, part)
            assert len(part) <= most or len(part) in single

    @revisions
    def test_a_frame_longer_than_the_limit_is_a_message_by_itself(self, revision: Revision) -> None:
        long = b"x" * (MESSAGE_BYTES + 1)
        data = messages(revision, 7, b"a", long, b"b")
        assert [len(part) > MESSAGE_BYTES for part in split(revision, data)] == [False, True, False]


class TestEntrypoint:
    @revisions
    def test_hello_attaches_the_workers_channel_and_notify_that_of_its_stream(self, revision: Revision) -> None:
        rules = ChannelRules(revision)
        assert rules.session_frame(hello(revision), 1, 0) is None
        assert rules.session_frame(revision.encode(Notify(2**64 - 1, "a", 0)), 0, 1) == 2**64 - 1
        assert rules.session_frame(revision.encode(Error("gave up")), 0, 0) is None

    @revisions
    @pytest.mark.parametrize("attached", [(0, 0), (0, 1), (1, 1), (2, 0)])
    def test_hello_with_other_attachments_is_refused(self, revision: Revision, attached: tuple[int, int]) -> None:
        rules = ChannelRules(revision)
        assert fault(lambda: rules.session_frame(hello(revision), *attached)) is Fault.WRONG_CHANNEL

    @revisions
    @pytest.mark.parametrize("attached", [(0, 0), (1, 0), (0, 2)])
    def test_notify_with_other_attachments_is_refused(self, revision: Revision, attached: tuple[int, int]) -> None:
        notify = revision.encode(Notify(7, "a", 0))
        assert fault(lambda: greeted(revision).session_frame(notify, *attached)) is Fault.WRONG_CHANNEL

    @revisions
    def test_messages_do_not_travel_on_the_entrypoint(self, revision: Revision) -> None:
        data = messages(revision, 7, b"a")
        assert fault(lambda: greeted(revision).session_frame(data, 0, 0)) is Fault.WRONG_CHANNEL

    def test_the_end_of_a_stream_does_not_travel_on_the_entrypoint(self) -> None:
        end = V3.encode(EosMessage(7, 3))
        assert fault(lambda: greeted(V3).session_frame(end, 0, 0)) is Fault.WRONG_CHANNEL

    @revisions
    @pytest.mark.parametrize("cut", [slice(0, 4), slice(0, -1), slice(0, 0)], ids=["a length", "most", "nothing"])
    def test_a_part_of_a_frame_is_refused(self, revision: Revision, cut: slice) -> None:
        rules = ChannelRules(revision)
        assert fault(lambda: rules.session_frame(hello(revision)[cut], 1, 0)) is Fault.TRUNCATED_FRAME

    @revisions
    def test_two_frames_are_refused(self, revision: Revision) -> None:
        notify = revision.encode(Notify(7, "a", 0))
        assert fault(lambda: greeted(revision).session_frame(notify + notify, 0, 1)) is Fault.TRUNCATED_FRAME

    def test_a_hello_of_another_byte_order_than_the_header_says_is_refused(self) -> None:
        assert fault(lambda: ChannelRules(DRAFT_LE).session_frame(hello(DRAFT_BE), 1, 0)) is Fault.TRUNCATED_FRAME


class TestStreams:
    @revisions
    def test_frames_of_the_stream_pass_and_its_end_too(self, revision: Revision) -> None:
        rules = greeted(revision)
        rules.stream_frames(7, messages(revision, 7, b"a", b"", b"c" * 70_000))
        rules.stream_frames(7, revision.encode(revision.end_of_stream(7, 3)))

    @revisions
    def test_a_message_of_another_stream_is_refused_wherever_it_stands(self, revision: Revision) -> None:
        data = messages(revision, 7, b"a", b"b") + messages(revision, 8, b"a")
        assert fault(lambda: greeted(revision).stream_frames(7, data)) is Fault.WRONG_CHANNEL

    @revisions
    def test_frames_of_the_session_do_not_travel_on_a_streams_channel(self, revision: Revision) -> None:
        data = messages(revision, 7, b"a") + revision.encode(Notify(7, "again", 0))
        assert fault(lambda: greeted(revision).stream_frames(7, data)) is Fault.WRONG_CHANNEL

    @revisions
    @given(st.data())
    def test_what_is_cut_anywhere_or_has_bytes_behind_it_is_refused(
        self, revision: Revision, data: st.DataObject
    ) -> None:
        whole = messages(revision, 7, b"a", b"bb")
        first = len(messages(revision, 7, b"a"))
        end = data.draw(st.integers(0, len(whole) - 1).filter(lambda end: end != first))
        extra = data.draw(st.binary(min_size=1, max_size=40))
        rules = greeted(revision)
        assert fault(lambda: rules.stream_frames(7, whole[:end])) in (Fault.TRUNCATED_FRAME, Fault.WRONG_CHANNEL)
        assert fault(lambda: rules.stream_frames(7, whole + extra)) in (Fault.TRUNCATED_FRAME, Fault.WRONG_CHANNEL)

    @revisions
    @given(st.binary(max_size=200))
    def test_bytes_that_are_no_frames_are_refused(self, revision: Revision, data: bytes) -> None:
        assert fault(lambda: greeted(revision).stream_frames(7, data)) in (Fault.TRUNCATED_FRAME, Fault.WRONG_CHANNEL)


class TestDatagrams:
    @drafts
    def test_one_ephemeral_message_passes(self, revision: Revision) -> None:
        data = messages(revision, 7, b"a", flags=Flags.EPHEMERAL)
        assert is_ephemeral(revision, data)
        greeted(revision).stream_frames(7, data, unreliable=True)

    @revisions
    def test_a_message_that_may_not_be_lost_is_refused(self, revision: Revision) -> None:
        data = messages(revision, 7, b"a")
        assert not is_ephemeral(revision, data)
        assert fault(lambda: greeted(revision).stream_frames(7, data, unreliable=True)) is Fault.WRONG_CHANNEL

    @drafts
    def test_two_messages_in_one_datagram_are_refused_because_a_lost_one_gives_back_one_credit(
        self, revision: Revision
    ) -> None:
        data = messages(revision, 7, b"a", b"b", flags=Flags.EPHEMERAL)
        assert fault(lambda: greeted(revision).stream_frames(7, data, unreliable=True)) is Fault.WRONG_CHANNEL

    def test_v3_has_no_message_that_may_be_lost(self) -> None:
        message = V3.encode(Message(7, 1, b"a"))
        assert fault(lambda: greeted(V3).stream_frames(7, message, unreliable=True)) is Fault.WRONG_CHANNEL
