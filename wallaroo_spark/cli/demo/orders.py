"""The demo's data: orders of a few shops as lines of JSON, the same ones at every run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SHOPS = 4
_ITEMS = {"apples": 120, "bread": 340, "coffee": 899, "dates": 450, "eggs": 310, "flour": 180}
_OPENING = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
_BURST = 10_000


def orders(shop: int, count: int) -> Iterator[dict[str, Any]]:
    """``count`` orders of one shop, a few for each second, with prices in cents."""
    chance = random.Random(shop)
    moment = _OPENING
    for number in range(1, count + 1):
        item = chance.choice(list(_ITEMS))
        quantity = chance.randint(1, 9)
        moment += timedelta(milliseconds=chance.randint(10, 120))
        yield {
            "order": number,
            "shop": f"shop-{shop}",
            "time": moment.isoformat(timespec="milliseconds"),
            "item": item,
            "quantity": quantity,
            "cents": quantity * _ITEMS[item],
        }


def write_orders(folder: Path, messages: int, wrote: Callable[[int], None]) -> list[Path]:
    """Write one file for each shop, with ``messages`` orders in all; ``wrote`` is called after each burst of orders."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for shop in range(1, SHOPS + 1):
        count = messages // SHOPS + (shop <= messages % SHOPS)
        path = folder / f"shop-{shop}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number, order in enumerate(orders(shop, count), start=1):
                file.write(json.dumps(order) + "\n")
                if number % _BURST == 0:
                    wrote(_BURST)
            wrote(count % _BURST)
        paths.append(path)
    return paths
