"""The tokens of a client that numbers its requests: which are new, which are repeated, and which are refused. Pure.

Source: ``docs/doors/http.md#exactly-once``.
"""

from __future__ import annotations

from wallaroo_spark.doors.client import DoorClient, DoorStream, Messages, stream_id
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.tickets import Ticket
from wallaroo_spark.references import StreamKey


def send(ground: Ground, instance: str, stream: DoorStream, messages: Messages, token: int) -> Ticket:
    """Have the worker take the messages of a token, unless it has them; the ticket is kept when all are committed.

    Raises :class:`Problem` for a token that was given up, and for one that comes too late.
    """
    since, until = ground.given_up(StreamKey(instance, stream.id))
    if since < token <= until:
        raise Problem(
            "http-token-given-up",
            f"a worker died before the messages of token {token} were committed, and the batch went on without "
            f"them, as they did not come again in time (door.replayTimeout); whether they are in the table is not "
            f"known. Send them with a token above {until} if they are not",
        )
    known = stream.knows(token)
    if known is None:
        raise Problem(
            "http-token-order",
            f"token {token} was not accepted, and {stream.last} was, which is above it; tokens increase, and a "
            "client sends the next one behind the answer to the last",
        )
    return stream.wait(token) if known else stream.send(messages, token, step=0)


def committed(ground: Ground, client: DoorClient, name: str) -> int | None:
    """The committed token of a stream. Tokens that were given up at its end do not count."""
    token = client.committed(name)
    since, until = ground.given_up(StreamKey(client.instance, stream_id(name)))
    return (since or None) if token is not None and since < token <= until else token
