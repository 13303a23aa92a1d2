"""A bridge from a protocol of one's own: clients send lines over TCP, and are told how many Spark has committed.

python examples/lines_over_tcp.py --listen 127.0.0.1:9000 --workers host-a:7100 --instance bridge-1

A client's first line is the name of its stream. The answer ``from N`` says that the first N lines are committed, so the
client sends its lines from there on, and may forget a line once ``committed N`` covers it. The bridge keeps nothing on
disk: the client is the one who sends again. So the promise of the package reaches to the client, through the bridge.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter

from wallaroo_spark.connector import Connector, Stream


class Bridge:
    """Serves clients with one connector; each client is a stream of it."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One client, from its first line to the end of its connection."""
        with contextlib.closing(writer):
            name = (await reader.readline()).decode().strip()
            stream = await self._connector.open(name)
            committed = stream.reference or 0
            writer.write(b"from %d\n" % committed)
            telling = asyncio.create_task(self._tell(stream, writer, committed))
            try:
                while line := await reader.readline():
                    # Waiting for credit here stops the reading, and TCP stops the client.
                    await stream.send(line.rstrip(b"\n"), id=(stream.last or committed) + 1)
                await stream.end()
                await stream.flushed()
            finally:
                telling.cancel()
            writer.write(b"committed %d\n" % (stream.acknowledged or committed))
            await writer.drain()

    async def _tell(self, stream: Stream, writer: StreamWriter, told: int) -> None:
        """Tell the client, a few times a second, how far Spark has come."""
        while True:
            await asyncio.sleep(0.2)
            if (stream.acknowledged or 0) > told:
                told = stream.acknowledged or 0
                writer.write(b"committed %d\n" % told)


async def bridge(listen: str, workers: str, instance: str, cookie: str = "") -> None:
    """Serve clients until this is cancelled."""
    host, _, port = listen.rpartition(":")
    async with Connector("bridge", instance=instance, workers=workers, cookie=cookie) as connector:
        server = await asyncio.start_server(Bridge(connector).serve, host, int(port))
        print(f"listening on {host}:{server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await server.serve_forever()


def main() -> None:
    """Read the command line and run until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Lines over TCP become messages of a receiver.")
    parser.add_argument("--listen", default="127.0.0.1:9000", help="host:port for clients; port 0 takes any free one")
    parser.add_argument("--workers", required=True, help="addresses of workers, host:port, separated by commas")
    parser.add_argument("--instance", required=True, help="the name by which the receiver knows this program")
    parser.add_argument("--cookie", default="", help="what the receiver asks for; env:NAME or file:PATH hide it")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(bridge(given.listen, given.workers, given.instance, given.cookie))


if __name__ == "__main__":
    main()
