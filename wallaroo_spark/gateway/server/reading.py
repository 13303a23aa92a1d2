"""Messages of clients as they arrive: one that is too large or unreadable is refused with a code and a text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from wallaroo_spark.gateway.refusals import Refused, invalid

MARGIN = 2
"""How many times ``message_bytes`` gRPC itself accepts. A choice: a message between the two limits is refused with a
text that has the limit; gRPC refuses larger ones, before it has them in memory."""


@dataclass(frozen=True)
class Unreadable:
    """Stands for the message of a call that cannot be read. The method of the service raises ``problem``."""

    problem: Refused
    """Why it cannot be read."""


class MessageReader(grpc.aio.ServerInterceptor):
    """Reads the messages of every method. In a stream the error of an unreadable one is raised where it is awaited."""

    def __init__(self, message_bytes: int) -> None:
        self._message_bytes = message_bytes

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Replace the deserializer of the method that is called."""
        handler = await continuation(details)
        if handler is None:
            return None
        parse, streaming = handler.request_deserializer, handler.request_streaming

        def read(data: bytes) -> Any:
            try:
                return self._read(data, parse, details.method)
            except Refused as problem:
                if streaming:
                    raise
                return Unreadable(problem)

        return handler._replace(request_deserializer=read)

    def _read(self, data: bytes, parse: Callable[[bytes], Any], method: str) -> Any:
        if len(data) > self._message_bytes:
            raise invalid(
                f"the message has {len(data)} bytes, and {self._message_bytes} are permitted; divide it, or keep large "
                "data elsewhere and send its address"
            )
        try:
            return parse(data)
        except DecodeError as error:
            raise invalid(
                f"the message of {len(data)} bytes is not the one that {method} takes, or a text in it is not UTF-8; "
                "make the client from the application's pipelines.proto"
            ) from error
