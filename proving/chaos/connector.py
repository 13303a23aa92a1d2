"""A connector process: sends each line of its files when it is due, and prints each acknowledgement.

Started as ``python -m proving.chaos.connector INSTANCE REVISION BEGAN INTERVAL FILE…``: line k of a file is due at
``BEGAN + k * INTERVAL`` (seconds of the wall clock). After a kill and a new start it continues behind the committed
reference and sends the overdue lines at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

from wallaroo_spark.connector import Backoff, Connector, FeedProgress, Lines, Record

RECEIVER = "chaos"
REGISTRY_VARIABLE = "WALLAROO_CHAOS_REGISTRY"
COOKIE_VARIABLE = "WALLAROO_CHAOS_COOKIE"
AHEAD_SECONDS = 0.02


class Paced:
    """The lines of a file, each no sooner than it is due."""

    replayable = True

    def __init__(self, file: str, began: float, interval: float) -> None:
        self.name = file
        self._lines = Lines(file)
        self._began = began
        self._interval = interval

    def lines_before(self, offset: int) -> int:
        """How many lines end at an offset or before it."""
        with Path(self.name).open("rb") as file:
            return file.read(offset).count(b"\n")

    async def read(self, after: int | None) -> AsyncIterator[Record]:
        """The lines behind byte offset ``after``."""
        number = self.lines_before(after or 0)
        for record in cast(Iterator[Record], self._lines.read(after)):
            ahead = self._began + number * self._interval - time.time()
            if ahead > AHEAD_SECONDS:
                await asyncio.sleep(ahead)
            yield record
            number += 1


class ProgressPrinter:
    """Prints each new acknowledgement once, with the time at which it was seen."""

    def __init__(self) -> None:
        self._said: dict[str, int | None] = {}

    def __call__(self, progress: FeedProgress) -> None:
        if progress.acknowledged is not None and self._said.get(progress.name) != progress.acknowledged:
            self._said[progress.name] = progress.acknowledged
            said = {"file": progress.name, "acknowledged": progress.acknowledged, "time": time.time()}
            print(json.dumps(said), flush=True)


async def send(instance: str, revision: str, began: float, interval: float, files: list[str]) -> None:
    """Send the lines of all files, one stream for each, until all are acknowledged."""
    async with Connector(
        RECEIVER,
        instance=instance,
        revision=revision,
        registry=f"env:{REGISTRY_VARIABLE}",
        cookie=f"env:{COOKIE_VARIABLE}",
        retry=Backoff(maximum=3.0),
    ) as connector:
        feeds = (connector.feed(Paced(file, began, interval), progress=ProgressPrinter()) for file in files)
        await asyncio.gather(*feeds)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    asyncio.run(send(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
