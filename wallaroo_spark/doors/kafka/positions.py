"""Positions of producers: which batches are new, which are repeated, and which must not be accepted.

A stream is what one producer sends to one partition. Its reference is an integer of 63 bits: the producer's epoch above
48 bits, and below it the number of records that the stream had in this epoch, counted on where the sequences of the
wire, which have 31 bits, begin again at 0. So a position is known again from the reference that is committed, and
references increase. A producer without an id has no sequences; the worker numbers its records by the time of arrival.
Source: ``docs/doors/kafka.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

from wallaroo_spark.doors.kafka.apis import Code
from wallaroo_spark.doors.kafka.record_batch import BatchHead, BatchRefused

_EPOCH_SHIFT = 48
_COUNT = (1 << _EPOCH_SHIFT) - 1
_SEQUENCES = 1 << 31


@dataclass(frozen=True, slots=True)
class Placed:
    """A batch with its place in its stream."""

    first: int
    """The message id of its first record."""
    last: int
    """The message id of its last record, which is the reference behind the batch."""
    repeated: bool
    """Whether all of it was accepted before."""


def place(head: BatchHead, position: int | None) -> Placed:
    """The place of a batch of a producer with an id; ``position`` is the reference of the last accepted record.

    None means that the stream is new here and that nothing of it is committed; then any sequence is accepted. Raises
    :class:`BatchRefused` with INVALID_PRODUCER_EPOCH for an older epoch, OUT_OF_ORDER_SEQUENCE for a gap, and
    UNKNOWN_PRODUCER_ID behind a :func:`fence`.
    """
    if position is None:
        return _placed(head, head.sequence, repeated=False)
    epoch, count = epoch_of(position), position & _COUNT
    if head.epoch == epoch - 1 and not count:
        # Its records were given up while their client was away. It was never told that they are safe.
        raise BatchRefused(
            Code.UNKNOWN_PRODUCER_ID,
            f"records of producer {head.producer} were given up before they were acknowledged; it sends them again",
        )
    if head.epoch < epoch:
        raise BatchRefused(
            Code.INVALID_PRODUCER_EPOCH,
            f"producer {head.producer} has sent epoch {epoch} already, and now sends epoch {head.epoch}",
        )
    if head.epoch > epoch:
        if head.sequence:
            raise _gap(head, 0)
        return _placed(head, 0, repeated=False)
    # The distance on the ring of sequences, from -2³⁰ to 2³⁰.
    distance = (head.sequence - count) % _SEQUENCES
    if distance >= _SEQUENCES // 2:
        distance -= _SEQUENCES
    first = count + distance
    repeated = distance < 0 and first >= 0 and first + head.count <= count
    if distance and not repeated:
        raise _gap(head, count % _SEQUENCES)
    return _placed(head, first, repeated=repeated)


def fence(reference: int) -> int:
    """The reference behind which a stream goes on whose batches up to ``reference`` were given up: its next epoch.

    A fence that was given up itself stays the same, for its producer has to go on with the next epoch and no later one.
    """
    return (epoch_of(reference) + 1) << _EPOCH_SHIFT if reference & _COUNT else reference


def epoch_of(reference: int) -> int:
    """The epoch in a reference."""
    return reference >> _EPOCH_SHIFT


def number(count: int, first: int) -> Placed:
    """The place of a batch of ``count`` records of a producer without an id, which begins with message id ``first``."""
    return Placed(first, first + count - 1, repeated=False)


def _placed(head: BatchHead, count: int, *, repeated: bool) -> Placed:
    above = head.epoch << _EPOCH_SHIFT
    return Placed(above + count + 1, above + count + head.count, repeated=repeated)


def _gap(head: BatchHead, expected: int) -> BatchRefused:
    return BatchRefused(
        Code.OUT_OF_ORDER_SEQUENCE,
        f"producer {head.producer} has to go on with sequence {expected}, and sends {head.sequence}",
    )
