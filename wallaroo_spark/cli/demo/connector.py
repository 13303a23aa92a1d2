"""A connector process of the demo: it sends the lines of its files and reports its progress on standard output.

It is started as ``python -m wallaroo_spark.cli.demo.connector INSTANCE REVISION FILE…``. The registry's URL and the
cookie come from environment variables.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from wallaroo_spark.connector import Connector, FeedResult, Lines, Progress

REGISTRY_VARIABLE = "WALLAROO_DEMO_REGISTRY"
COOKIE_VARIABLE = "WALLAROO_DEMO_COOKIE"


def tell(progress: Progress) -> None:
    """Print the progress as one line of JSON, for the demo's view."""
    line = {"file": progress.name, "messages": progress.messages, "acknowledged": progress.acknowledged}
    print(json.dumps(line), flush=True)


async def send(instance: str, revision: str, files: list[str]) -> None:
    """Send the lines of all files, each file as a stream, and wait until all are acknowledged."""

    async def feed(connector: Connector, file: str) -> FeedResult:
        return await connector.feed(Lines(file), name=file, progress=tell)

    async with Connector(
        "demo",
        instance=instance,
        revision=revision,
        registry=f"env:{REGISTRY_VARIABLE}",
        cookie=f"env:{COOKIE_VARIABLE}",
    ) as connector:
        results = await asyncio.gather(*(feed(connector, file) for file in files))
        for file, result in zip(files, results, strict=True):
            last = {"file": file, "messages": result.messages, "acknowledged": result.acknowledged, "done": True}
            print(json.dumps(last), flush=True)


if __name__ == "__main__":
    assert REGISTRY_VARIABLE in os.environ
    asyncio.run(send(sys.argv[1], sys.argv[2], sys.argv[3:]))
