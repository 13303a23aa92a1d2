"""A pipeline of functions that is deleted and declared anew from the beginning writes all of its outputs again."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest

from tests.gateway.memory import MemoryApplication
from tests.pipelines.controller.one_key import record, reply
from tests.waiting import SECONDS
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey

STREAMS = """
kind: Stream
name: orders
namespace: shop
---
kind: Stream
name: letters
namespace: shop
---
kind: Stream
name: failed
namespace: shop
"""
PIPELINE = """---
kind: Pipeline
name: write
namespace: shop
inputStream: orders
startPoint: {location: beginning}
stages:
  - name: write
    run: tests.engine.operator.test_declared_anew:write
    streamOutputs: [letters]
    retry: {maxAttempts: 1, deadLetterStream: failed}
"""
ORDERS, LETTERS, FAILED = (PartitionKey(f"shop/{name}", 0) for name in ("orders", "letters", "failed"))


def write(orders: pd.DataFrame) -> pd.DataFrame:
    """A letter for each order; the second order cannot be written to."""
    if len(orders) > 1 or orders["instance"].iloc[0] == 2:
        raise ValueError("no address")
    return pd.DataFrame({"letters": [[{"type": "letter"}]]}, index=orders.index)


@pytest.fixture
def application() -> Iterator[MemoryApplication]:
    made = MemoryApplication(STREAMS + PIPELINE)
    yield made
    made.close()


def test_outputs_and_dead_letters_are_written_for_each_life_of_a_pipeline(application: MemoryApplication) -> None:
    def ended(count: int) -> bool:
        return sum(isinstance(one, i.InstanceEnded) for _, one in application.said) == count

    application.write([(ORDERS, RecordsPublished(reply(1), (record(1), record(2), record(3))))])
    assert application.wait(lambda: ended(3), SECONDS)
    application.hold()
    application.apply(STREAMS)
    application.run_batch()
    application.apply(STREAMS + PIPELINE)
    application.release()
    assert application.wait(lambda: ended(6), SECONDS)

    assert application.wait(lambda: len(application.records[LETTERS]) == 4, SECONDS)
    assert application.wait(lambda: len(application.records[FAILED]) == 2, SECONDS)
    for key in (LETTERS, FAILED):
        assert len({one.id for one in application.records[key]}) == len(application.records[key])
