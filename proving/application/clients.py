"""The clients of the random application: ``python -m proving.application.clients ROLE ADDRESS JOURNAL SEED RATE``.

Each writes what it asked for and what it was answered into its journal, a line each. A client may be killed at any
time; the next one goes on with its journal, as a program with a store of its own would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wallaroo_spark.client import Again, AsyncClient, Backoff, Event, Output, StageWork, stage
from wallaroo_spark.errors import PipelineError, WallarooError

ORDERS, NOTES, AUDIT, RECEIPTS = "rand/orders", "rand/notes", "rand/audit", "rand/receipts"
TOGETHER = 4
"""Events that a publisher publishes at the same time."""
PAUSE_SECONDS = 1.0
"""Time between two attempts after an error."""


class Journal:
    """Lines of JSON, each written with one call, so that a kill leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self.before = list(read_journal(path))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, **line: Any) -> None:
        """Write a line."""
        os.write(self._file, (json.dumps(line) + "\n").encode())


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal; none before it is there."""
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


class Publisher:
    """Publishes orders and notes. What has no answer is published again with its id, also after a death."""

    def __init__(self, client: AsyncClient, journal: Journal, dice: random.Random, rate: float) -> None:
        self._client, self._journal, self._dice, self._rate = client, journal, dice, rate
        answered = {line["id"] for line in journal.before if "id" in line and line["kind"] != "ask"}
        asked = [line for line in journal.before if line["kind"] == "ask"]
        self._open = [line for line in asked if line["id"] not in answered]
        self._number = len(asked)

    async def run(self) -> None:
        """Publish for ever."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(TOGETHER)
        tasks = [asyncio.create_task(self._work(queue)) for _ in range(TOGETHER)]
        for line in self._open:
            await queue.put(line)
        while True:
            stopped = any(line["kind"] == "stop" for line in read_journal(Path(sys.argv[3]).with_name("stop.jsonl")))
            if stopped:
                await queue.join()
                self._journal.note(kind="end")
                break
            await queue.put(self._next())
            await asyncio.sleep(self._dice.expovariate(self._rate))
        for task in tasks:
            task.cancel()

    def _next(self) -> dict[str, Any]:
        self._number += 1
        dice = self._dice
        line = {
            "kind": "ask",
            "id": f"{sys.argv[1]}-{self._number}",
            "stream": NOTES if dice.random() < 0.15 else ORDERS,
            "poison": dice.choice(("pay", "check")) if dice.random() < 0.06 else "",
            "delay": round(dice.uniform(1, 20), 1) if dice.random() < 0.05 else 0,
            "durability": "received" if dice.random() < 0.15 else "committed",
            "at": time.time(),
        }
        if line["stream"] == NOTES:
            line.update(delay=0, durability="committed")
        self._journal.note(**line)
        return line

    async def _work(self, queue: asyncio.Queue[dict[str, Any]]) -> None:
        while True:
            line = await queue.get()
            event = Event("rand.order", {"order": line["id"], "poison": line["poison"]}, id=line["id"], source="/rand")
            while True:
                try:
                    places = await self._client.publish(
                        line["stream"], event, durability=line["durability"], delay=line["delay"] or None
                    )
                except PipelineError as error:
                    if line["stream"] == NOTES:
                        self._journal.note(kind="refused", id=line["id"], why=str(error)[:200])
                        break
                    self._journal.note(kind="trouble", why=str(error)[:300])
                except WallarooError as error:
                    self._journal.note(kind="trouble", why=str(error)[:300])
                else:
                    where = [[place.partition, place.offset] for place in places]
                    self._journal.note(kind="published", id=line["id"], places=where, at=time.time())
                    break
                await asyncio.sleep(PAUSE_SECONDS)
            queue.task_done()


def shaky(dice: random.Random) -> None:
    """Fail now and then."""
    if dice.random() < 0.05:
        raise Again("a worker that fails now and then", delay=dice.choice((0, 0.3)))


def stages(dice: random.Random) -> list[Any]:
    """The functions of the worker."""

    @stage("rand/fulfil", "pay", concurrency=50)
    async def pay(work: StageWork) -> Output:
        assert work.root_event is not None
        order = work.root_event.value
        if order["poison"] == "pay":
            raise Again("a poisoned order")
        await asyncio.sleep(dice.choice((0, 0, 0.5)))
        shaky(dice)
        receipt = {"order": order["order"], "partition": work.partition, "instance": work.instance}
        return Output(receipt, streams={RECEIPTS: Event("rand.paid", receipt)})

    @stage("rand/fulfil", "ship", concurrency=50)
    async def ship(work: StageWork) -> dict[str, Any]:
        assert work.root_event is not None
        order = work.root_event.value["order"]
        assert work.outputs["pay"]["order"] == work.outputs["check"]["checked"] == order
        shaky(dice)
        return {"shipped": order}

    @stage("rand/fulfil", "tidy", concurrency=50)
    async def tidy(work: StageWork) -> None:
        shaky(dice)

    return [pay, ship, tidy]


async def work(client: AsyncClient, dice: random.Random) -> None:
    """Work on the stages, also on those that are not declared at times."""

    async def one(function: Any) -> None:
        while True:
            with contextlib.suppress(WallarooError):
                await client.work(function)
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(one(function) for function in stages(dice)))


async def consume(client: AsyncClient, role: str, journal: Journal, dice: random.Random) -> None:
    """Be a member of a group: of orders (``billing``, ``ledger``) or of notes (``readers``)."""
    stream = NOTES if role == "readers" else ORDERS
    while True:
        try:
            async for delivery in client.consume(
                stream, group=role, start="beginning", max_events=dice.choice((5, 40, 100)), concurrency=MEMBERS
            ):
                try:
                    await _take(delivery, role, journal, dice)
                except WallarooError as error:
                    journal.note(kind="lost", why=str(error)[:200])
        except WallarooError as error:
            journal.note(kind="trouble", why=str(error)[:300])
        await asyncio.sleep(PAUSE_SECONDS)


MEMBERS = 5
"""Deliveries of a member at once."""


async def _take(delivery: Any, role: str, journal: Journal, dice: random.Random) -> None:
    ids = [event.id for event in delivery.events]
    given = {"partition": delivery.partition, "first": delivery.first, "missed": delivery.missed}
    journal.note(kind="given", ids=ids, **given)
    if dice.random() < 0.1:
        await delivery.nack(delay=dice.choice((0, 0.5)), reason="a member that fails now and then")
        return
    if role != "ledger":
        journal.note(kind="acking", ids=ids, **given)
        await delivery.ack()
        journal.note(kind="acked", ids=ids, **given)
        return
    attempt = uuid.uuid4().hex
    async with delivery.transaction() as transaction:
        entries = [
            Event("rand.entry", {"attempt": attempt, "partition": delivery.partition, "offset": offset})
            for offset in range(delivery.first, delivery.first + len(ids))
        ]
        journal.note(kind="acking", attempt=attempt, ids=ids, **given)
        await transaction.publish(AUDIT, *entries)
        if dice.random() < 0.3:
            with contextlib.suppress(PipelineError):
                await transaction.publish(NOTES, Event("rand.note", {"attempt": attempt}, id=f"note-{attempt}"))
    written = [
        [one.stream, [[place.partition, place.offset] for place in one.places], one.reason]
        for one in transaction.written
    ]
    journal.note(kind="acked", attempt=attempt, ids=ids, written=written, **given)


async def main() -> None:
    """Run one role."""
    role, address, journal, seed, rate = sys.argv[1:6]
    dice = random.Random(f"{seed} {role} {os.getpid()}")
    retry = Backoff(give_up_after=60, maximum=1)
    async with AsyncClient(address, source="/rand", timeout=60, retry=retry) as client:
        name = role.partition("-")[0]
        if name == "publisher":
            await Publisher(client, Journal(Path(journal)), dice, float(rate)).run()
        elif name == "worker":
            await work(client, dice)
        else:
            await consume(client, name, Journal(Path(journal)), dice)


if __name__ == "__main__":
    asyncio.run(main())
