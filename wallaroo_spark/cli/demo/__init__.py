"""``wallaroo-spark demo``: runs the whole product on one machine: orders or your files are sent, written as Parquet,
and compared with the input.

The verb is in ``command.py`` and loads on first use, because the connectors' processes need nothing of it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "demo":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wallaroo_spark.cli.demo.command import demo

    return demo
