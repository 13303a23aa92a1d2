"""Any frame comes back from its bytes, and any bytes are a frame, an incomplete frame or a named violation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.aqueduct.errors import ProtocolViolation
from wallaroo_spark.aqueduct.frames import (
    ENTRYPOINT,
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ChannelId,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    FrameLimits,
    Half,
    MessageFrame,
    SentUnreliable,
    Side,
    Version,
    decode,
    encode,
)
from wallaroo_spark.aqueduct.frames.values import U64_MAX

LIMITS = FrameLimits(frame=10_000, headers=1000, attachments=10)

numbers = st.integers(0, U64_MAX)
channels = numbers.map(ChannelId)
keys = st.text(st.characters(max_codepoint=127), min_size=1, max_size=20)
headers = st.lists(st.tuples(keys, st.binary(max_size=20)), max_size=5).map(tuple)
lengths = st.integers(1, U64_MAX)
ranges = st.one_of(
    st.lists(lengths, min_size=1, max_size=10).map(tuple),
    st.lists(lengths, min_size=1, max_size=10).map(lambda found: (0, *found)),
)
frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Version, st.binary(max_size=100)),
    st.builds(ConnectionControl, headers),
    st.builds(ChannelControl, channels),
    st.builds(MessageFrame, channels, numbers, st.binary(max_size=100), st.lists(channels, max_size=10).map(tuple)),
    st.builds(SentUnreliable, numbers),
    st.builds(AckReliable, ranges),
    st.builds(AckNackUnreliable, ranges),
    st.builds(FinishSender, numbers),
    st.builds(CloseReceiver, st.one_of(st.just(()), ranges)),
    st.builds(ClosedChannelLost, channels),
)


@given(st.lists(frames, max_size=5), st.binary(max_size=3))
def test_frames_back_to_back_come_back_from_their_bytes(sent: list[Frame], before: bytes) -> None:
    data = before + b"".join(map(encode, sent))
    at, found = len(before), []
    for _ in sent:
        read = decode(data, at, LIMITS)
        assert read is not None
        found.append(read[0])
        at = read[1]

    assert found == sent
    assert at == len(data)
    assert decode(data, at, LIMITS) is None


@given(frames, st.data())
def test_a_frame_that_is_cut_is_incomplete(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    cut = data.draw(st.integers(0, len(whole) - 1))

    assert decode(whole[:cut], 0, LIMITS) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_a_frame_or_incomplete_or_refused(data: bytes) -> None:
    try:
        read = decode(data, 0, LIMITS)
    except ProtocolViolation:
        return
    # What was read has one encoding only.
    assert read is None or encode(read[0]) == data[: read[1]]


@given(st.sampled_from(Side), st.sampled_from(Side), st.integers(0, 2**61 - 1), st.booleans())
def test_an_id_says_who_sends_who_created_it_and_which_it_is(
    sender: Side, creator: Side, index: int, oneshot: bool
) -> None:
    channel = ChannelId.of(sender, creator, index, oneshot=oneshot)

    assert (channel.sender, channel.creator, channel.index, channel.oneshot) == (sender, creator, index, oneshot)
    assert channel.half_at(sender) is Half.SENDER
    assert channel.half_at(sender.other) is Half.RECEIVER
    assert 0 <= channel <= U64_MAX


def test_the_ids_of_the_seed_have_these_bits() -> None:
    assert ChannelId.of(Side.CLIENT, Side.CLIENT, 0) == ENTRYPOINT == 0
    assert ChannelId.of(Side.SERVER, Side.CLIENT, 0) == 1
    assert ChannelId.of(Side.CLIENT, Side.SERVER, 0) == 2
    assert ChannelId.of(Side.CLIENT, Side.CLIENT, 1, oneshot=True) == 12
