"""The messages of requests that have one answer, and their answers as values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api.limits import MESSAGE_BYTES
from wallaroo_spark.client.arguments import (
    durability_of,
    events_of,
    key_of,
    not_before_of,
    partition_of_call,
    path_of,
)
from wallaroo_spark.errors import ArgumentValueError


class _Sized(Protocol):
    def ByteSize(self) -> int:  # the name of protobuf
        """The number of its bytes."""


T = TypeVar("T", bound=_Sized)


@dataclass(frozen=True)
class ApplicationDescription:
    """The declared objects of an application, and its gateways."""

    version: int
    """Version of the schema."""
    schema: str
    """The schema as YAML documents, without tokens."""
    gateways: tuple[str, ...]
    """The addresses of the gateways, ``host:port``."""


def publish_request(
    stream: Any, events: tuple[Any, ...], partition: Any, durability: Any, key: Any, delay: Any, source: str
) -> pb.PublishRequest:
    """The request of :meth:`Client.publish`. Raises as the functions of ``arguments`` do."""
    make = request_maker(stream, partition, durability, delay)
    checked = key_of(key)
    messages = [event.to_message(source, checked) for event in events_of(events)]
    return within_limit(make(messages), f"publish to {stream}")


def request_maker(
    stream: Any, partition: Any, durability: Any, delay: Any
) -> Callable[[Sequence[Any]], pb.PublishRequest]:
    """A function that makes requests of the messages of events. Raises as the functions of ``arguments`` do."""
    path = path_of(stream, "stream")
    given = {"partition": partition_of_call(partition), "durability": durability_of(durability)}
    not_before_of(delay)
    return lambda messages: pb.PublishRequest(stream=path, events=messages, not_before=not_before_of(delay), **given)


def within_limit(message: T, action: str) -> T:
    """The message itself. Raises :class:`ArgumentValueError` for one that no gateway takes."""
    size = message.ByteSize()
    if size > MESSAGE_BYTES:
        raise ArgumentValueError(
            f"{action}: the request has {size} bytes, and {MESSAGE_BYTES} are permitted; divide it, or keep large data "
            "elsewhere and send its address",
            code="message-too-large",
        )
    return message


def description_of(reply: pb.DescribeReply) -> ApplicationDescription:
    """The description of a reply."""
    return ApplicationDescription(reply.version, reply.schema, tuple(reply.gateways))
