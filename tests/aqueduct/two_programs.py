"""A server that reports what it was sent, and a client that sends in every manner, as programs of their own.

python -m tests.aqueduct.two_programs serve HOST CERTIFICATE KEY
python -m tests.aqueduct.two_programs send ADDRESS CA CHANNELS MESSAGES

The client prints a line in the middle and goes on when it is given one; its last line is a JSON object of what it saw.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from wallaroo_spark import aqueduct

KINDS: dict[str, dict[str, Any]] = {
    "ordered": {},
    "unordered": {"unordered": True},
    "unreliable": {"unreliable": True},
}


async def report(connection: aqueduct.Connection) -> None:
    """For each channel that comes, collect its messages, and tell them on the channel that comes with it."""

    async def collect(receiver: aqueduct.Receiver, sender: aqueduct.Sender) -> None:
        seen: dict[str, list[int]] = {kind: [] for kind in KINDS}
        async for message in receiver:
            kind, number, _ = message.payload.split(b" ", 2)
            seen[kind.decode()].append(int(number))
        async with sender:
            await sender.send(json.dumps(seen).encode())

    async with asyncio.TaskGroup() as collecting:
        async for message in connection.requests:
            first, second = message.attachments
            collecting.create_task(collect(first.receiver(), second.sender()))


async def serve(host: str, certificate: str, key: str) -> None:
    """Listen until this is killed."""
    async with aqueduct.serve(report, host, 0, certificate=certificate, key=key) as server:
        print(server.address, flush=True)
        await server.serve_forever()


async def send(address: str, ca: str, channels: int, messages: int) -> dict[str, Any]:
    """Send on some channels at the same time; returns what was sent and seen."""
    async with aqueduct.connect(address, ca=ca, server_name="localhost") as connection:
        await connection.headers()
        half, go_on = asyncio.Barrier(channels + 1), asyncio.Event()
        work = [asyncio.create_task(_send_on_one(connection, messages, half, go_on)) for _ in range(channels)]
        await half.wait()
        print("half", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        go_on.set()
        return {"channels": await asyncio.gather(*work)}


async def _send_on_one(
    connection: aqueduct.Connection, messages: int, half: asyncio.Barrier, go_on: asyncio.Event
) -> dict[str, Any]:
    reports, for_reports = connection.channel(oneshot=True)
    sender, for_sender = connection.channel("sender")
    await connection.entrypoint.send(b"", attach=[for_sender, for_reports])
    undecided = []
    for number in range(messages):
        if number == messages // 2:
            await half.wait()
            await go_on.wait()
        for kind, how in KINDS.items():
            sent = await sender.send(f"{kind} {number} ".encode() + bytes(500), **how)
            undecided.append((kind, sent))
    lost = dict.fromkeys(KINDS, 0)
    for kind, sent in undecided:
        try:
            await sent.acked
        except aqueduct.Lost:
            lost[kind] += 1
    await sender.finish()
    told = await reports.receive()
    assert told is not None
    return {"lost": lost, "seen": json.loads(told.payload)}


if __name__ == "__main__":
    verb, *given = sys.argv[1:]
    if verb == "serve":
        asyncio.run(serve(*given))
    else:
        print(json.dumps(asyncio.run(send(given[0], given[1], int(given[2]), int(given[3])))), flush=True)
