"""HTTP clients that post as fast as they are answered: ``python -m proving.bench.doors.http_posts JSON``.

It prints a line of JSON when posting begins, and another with its counts when it has ended. Each client has a
connection of its own, which stays open, and one request under way.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

NDJSON, JSON = "application/x-ndjson", "application/json"
DRAIN_SECONDS = 30.0
_END = b"\r\n\r\n"


def body(lines: int, size: int) -> bytes:
    """So many objects of JSON, each of ``size`` bytes on a line of its own; a single one has no line feed."""
    line = b'{"order": "%s"}' % (b"x" * (size - len(b'{"order": ""}')))
    return line if lines == 1 else (line + b"\n") * lines


class Client(asyncio.Protocol):
    """One client: it sends the same request again as soon as the last one is answered, until ``over`` is done."""

    def __init__(self, request: bytes, answers: Counter[int], over: asyncio.Future[None]) -> None:
        self.idle = asyncio.get_running_loop().create_future()
        self._request, self._answers, self._over = request, answers, over
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count an answer that is complete."""
        received = self._received = self._received + data
        head, found, rest = received.partition(_END)
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r", 1)[0]) if found else 0
        if not found or len(rest) < length:
            return
        self._received = b""
        self._answers[int(received[9:12])] += 1
        if self._over.done():
            self._transport.close()
        else:
            self._transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has ended."""
        if not self.idle.done():
            self.idle.set_result(None)


async def post(port: int, clients: int, lines: int, size: int, seconds: float) -> dict[str, int]:
    """Post for so long, over so many connections; how often each status was answered."""
    content = body(lines, size)
    head = (
        f"POST /v1/streams/bench HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: {JSON if lines == 1 else NDJSON}\r\nContent-Length: {len(content)}{_END.decode()}"
    )
    loop, answers = asyncio.get_running_loop(), Counter[int]()
    over: asyncio.Future[None] = loop.create_future()
    print(json.dumps({"began": time.monotonic()}), flush=True)
    opened = [
        (await loop.create_connection(lambda: Client(head.encode() + content, answers, over), "127.0.0.1", port))[1]
        for _ in range(clients)
    ]
    await asyncio.sleep(seconds)
    over.set_result(None)
    await asyncio.wait([client.idle for client in opened], timeout=DRAIN_SECONDS)
    return {str(status): count for status, count in answers.items()}


if __name__ == "__main__":
    print(json.dumps({"answers": asyncio.run(post(**json.loads(sys.argv[1])))}), flush=True)
