"""Sends numbered events to a receiver, from the committed reference on.

``python -m tests.engine.application.bulk_sender REGISTRY PROGRAM STREAM COUNT`` ends when all are committed. It prints
a line after each part that is.
"""

from __future__ import annotations

import json
import sys

from wallaroo_spark.connector import BlockingConnector

PART = 2_000
"""Messages after which the program waits for their commit."""


def main(registry: str, program: str, name: str, count: int) -> None:
    """Send the events."""
    with BlockingConnector(
        program, instance="bulk", registry=registry, cookie="env:COOKIE", drain_timeout=None
    ) as connector:
        stream = connector.open(name)
        for number in range(0 if stream.reference is None else stream.reference + 1, count):
            stream.send(json.dumps({"type": "shop.order.created", "data": number}).encode(), id=number)
            if (number + 1) % PART == 0:
                connector.drain()
                print(number + 1, flush=True)
        stream.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
