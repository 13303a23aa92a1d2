"""Functions of stages on pandas DataFrames."""

from __future__ import annotations

from collections.abc import Sequence

from wallaroo_spark.pipelines.controller.messages.events import DeliveryNacked, Event
from wallaroo_spark.pipelines.controller.messages.instructions import RunFunction
from wallaroo_spark.pipelines.controller.messages.values import IN_SPARK


class StageFunctions:
    """The functions of a task."""

    def run(self, runs: Sequence[RunFunction], now: int) -> Sequence[Event]:
        """The results of runs, in the same order."""
        return [DeliveryNacked(None, IN_SPARK, run.delivery, 1000) for run in runs]
