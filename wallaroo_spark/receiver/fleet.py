"""One Spark job a slot, each run again whenever it ends, for as long as the receiver runs.

Source: ``design.md``, The picture (Fleet) and What Spark does that shapes the code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.registry import Registry
from wallaroo_spark.worker.service import WorkerSetup

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("wallaroo_spark.receiver")

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
ASK_SECONDS = 1.0
STEADY_SECONDS = 30.0
"""A job that ran for so long was well, so the next pause is short again."""
_ERROR_CHARACTERS = 500


@dataclass
class SlotRecord:
    """How one slot's job has fared. ``submissions`` counts them all, the first included; ``submission`` is the last
    one's number in the registry.
    """

    slot: int
    submissions: int = 0
    submission: int = 0
    running: bool = False
    last_error: str = ""


def serve_slot(setup: WorkerSetup) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """What mapInPandas runs in an executor. Everything it needs is imported there."""

    def serve(rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from wallaroo_spark.worker.run import run_worker

        options = setup.options
        registry = Registry(options.registry, options.receiver, lease_seconds=options.lease_seconds)
        try:
            yield from run_worker(setup, registry, rows)
        finally:
            registry.close()

    return serve


class Fleet:
    """The jobs of all slots, each watched by a thread."""

    def __init__(self, spark: Any, registry: Registry, setup: WorkerSetup) -> None:
        self.records = [SlotRecord(slot) for slot in range(setup.options.workers)]
        self._spark = spark
        self._registry = registry
        self._setup = setup
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Submit every slot's job."""
        for record in self.records:
            name = f"wallaroo-{self._setup.options.receiver}-{record.slot}"
            thread = threading.Thread(target=self._supervise, args=(record, name), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def expect_end(self) -> None:
        """Jobs that end from now on are not submitted again."""
        self._stopping.set()

    def join(self, seconds: float, ask: Callable[[], None]) -> None:
        """Have the jobs end, asking the workers every now and then; those that do not end are interrupted."""
        self._stopping.set()
        until = time.monotonic() + seconds
        # A worker may only just be coming up, so that asking once would not reach it.
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < until:
            ask()
            asked = time.monotonic()
            for thread in self._threads:
                thread.join(max(0.0, min(until, asked + ASK_SECONDS) - time.monotonic()))
        for thread in [thread for thread in self._threads if thread.is_alive()]:
            log.warning("the job of %s did not end by itself and is interrupted", thread.name)
            self._interrupt(thread.name)
            thread.join(seconds)

    def _interrupt(self, tag: str) -> None:
        """End a slot's job from outside. Spark Connect knows a session's tags; without it, a tag that another thread
        set is known to the context alone.
        """
        with contextlib.suppress(Exception):
            self._spark.interruptTag(tag)
        with contextlib.suppress(Exception):
            self._spark.sparkContext.cancelJobsWithTag(tag)

    def _supervise(self, record: SlotRecord, tag: str) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._run(record, tag)
                log.info("slot %d: its job ended", record.slot)
            except RegistryError as error:
                record.last_error = error.message
            except Exception as error:
                record.last_error = _in_short(error)
                if not self._stopping.is_set():
                    log.warning("slot %d: its job failed and is submitted again: %s", record.slot, record.last_error)
            record.running = False
            pause = FIRST_PAUSE if time.monotonic() - began > STEADY_SECONDS else min(LONGEST_PAUSE, pause * 2)
            self._stopping.wait(pause)

    def _run(self, record: SlotRecord, tag: str) -> None:
        submission = record.submission = self._registry.next_submission()
        record.submissions += 1
        setup = dataclasses.replace(self._setup, slot=record.slot, submission=submission)
        self._spark.addTag(tag)
        record.running = True
        with contextlib.suppress(Exception):
            self._spark.sparkContext.addJobTag(tag)
            self._spark.sparkContext.setJobDescription(f"wallaroo worker {record.slot} of {setup.options.receiver}")
        one_row = self._spark.range(record.slot, record.slot + 1, 1, 1)
        one_row.mapInPandas(serve_slot(setup), "slot int").write.format("noop").mode("overwrite").save()


def _in_short(error: Exception) -> str:
    """What happened, out of a Spark error's many lines about where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("wallaroo_spark.")]
    causes = [line.removeprefix("Caused by: ") for line in lines if re.search(r"(Exception|Error): \S", line)]
    text = (ours[-1:] or causes[:1] or lines[:1] or [repr(error)])[0]
    return text.lstrip(": ")[:_ERROR_CHARACTERS]
