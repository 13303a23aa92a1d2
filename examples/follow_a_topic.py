"""Follow a topic and go on where it was when it is started again: each epoch is handled at least once, and in order.

python examples/follow_a_topic.py totals --registry redis://redis:6379 --position position.json

The position is written after an epoch was handled. A program that dies in between handles that epoch again, so what it
does with an epoch should give the same result when it is done twice; here it prints the epoch's rows.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from wallaroo_spark.pubsub import Position, subscribe


def saved(file: Path) -> Position | None:
    """The position that an earlier run has left, None at the first run."""
    if not file.exists():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    time = found["time"]
    return Position(found["identity"], tuple(time) if isinstance(time, list) else time)


def save(file: Path, position: Position) -> None:
    """Put the position in place of the last one, whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"identity": position.identity, "time": position.time}), encoding="utf-8")
    os.replace(new, file)


def follow(topic: str, file: Path, handle: Callable[[Any, pa.Table], None], **settings: Any) -> None:
    """Handle every epoch of the topic from the saved position on, until the topic ends."""
    with subscribe(topic, resume=saved(file), **settings) as subscription:
        for epoch, table in subscription.epochs():
            handle(epoch, table)
            if subscription.position is not None:
                save(file, subscription.position)


def show(epoch: Any, table: pa.Table) -> None:
    """Print the rows of an epoch."""
    print(epoch, table.to_pylist(), flush=True)


def main() -> None:
    """Read the command line and run until the topic ends."""
    parser = argparse.ArgumentParser(description="Print the epochs of a topic, each after the other.")
    parser.add_argument("topic")
    parser.add_argument("--registry", required=True, help="the topic's Redis; also env:NAME or file:PATH")
    parser.add_argument("--cookie", default="", help="the topic's cookie; env:NAME or file:PATH hide it")
    parser.add_argument("--position", type=Path, default=Path("position.json"), help="where the position is kept")
    given = parser.parse_args()
    follow(given.topic, given.position, show, registry=given.registry, cookie=given.cookie, wait=60)


if __name__ == "__main__":
    main()
