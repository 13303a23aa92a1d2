"""Stages that are given, raise and return what breaks programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from tests import evil_values as evil
from wallaroo_spark.client import stage

if TYPE_CHECKING:
    from wallaroo_spark.client import StageWork


def pass_on(deliveries: pd.DataFrame) -> pd.Series[Any]:
    """The data of the event as a part of the output."""
    return pd.Series([{"it": root["data"]} for root in deliveries["root_event"]], deliveries.index, object)


def wild(deliveries: pd.DataFrame) -> pd.DataFrame:
    """Raises the error, or returns the value or the event, that the subject of the event names."""
    outputs: list[Any] = []
    events: list[Any] = []
    for root in deliveries["root_event"]:
        kind, _, name = root["subject"].partition("/")
        if kind == "error":
            raise evil.ERRORS[name]
        outputs.append(evil.nested() if name == "nested" else evil.VALUES[name] if kind == "value" else "fine")
        events.append([{"type": "letter", name: evil.LONE}, {"type": evil.LONE}] if kind == "event" else [])
    return pd.DataFrame(
        {
            "output": pd.Series(outputs, deliveries.index, object),
            "more": pd.Series(events, deliveries.index, object),
        }
    )


@stage("shop/all", "work", concurrency=20)
def work(given: StageWork) -> Any:
    """A worker outside Spark: the output of the stage before it."""
    assert given.root_event is not None
    assert given.root_event.value is not None
    return given.outputs["pass"]
