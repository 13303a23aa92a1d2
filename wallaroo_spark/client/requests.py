"""The messages of requests that have one answer, and their answers as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client.arguments import (
    durability_of,
    events_of,
    not_before_of,
    partition_of_call,
    path_of,
)
from wallaroo_spark.connector.arguments import shown
from wallaroo_spark.errors import ArgumentTypeError


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
    if key is not None and not isinstance(key, str):
        raise ArgumentTypeError(
            f"key is a str, and this one is {type(key).__name__}: {shown(key)}; write it as a str",
            code="argument-type",
            argument="key",
        )
    return pb.PublishRequest(
        stream=path_of(stream, "stream"),
        events=[event.to_message(source, key) for event in events_of(events)],
        partition=partition_of_call(partition),
        durability=durability_of(durability),
        not_before=not_before_of(delay),
    )


def description_of(reply: pb.DescribeReply) -> ApplicationDescription:
    """The description of a reply."""
    return ApplicationDescription(reply.version, reply.schema, tuple(reply.gateways))
