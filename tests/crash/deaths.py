"""Deaths that a test orders and any process of its driver's may die: a file a step, in ``armed``, then in ``done``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from wallaroo_spark.sidecar import plan_files
from wallaroo_spark.steps import AnyStep, Step, at_each

DIRECTORY = "WALLAROO_TEST_DEATHS"
"""The variable that names the directory of the orders."""
PATH = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).parent / "site")]
"""The folder where Python finds the tests, and the module that it runs at its start."""
ROWS_A_BATCH = 7
"""So that a range of a few messages is handed out in parts."""

OF_THE_DRIVER = {
    Step.PLAN_WRITTEN,
    Step.OFFSETS_WRITTEN,
    Step.SINK_WRITTEN,
    Step.COMMITS_WRITTEN,
    Step.PLANS_HALF_PURGED,
    Step.REFERENCES_SENT,
}
"""Steps at which the driver dies, with Spark's own process in it; at the others the process alone that comes by."""


class Deaths:
    """The orders of one test."""

    def __init__(self, directory: Path) -> None:
        self._armed = directory / "armed"
        self._done = directory / "done"
        self._driver = directory / "driver"
        self._armed.mkdir(parents=True, exist_ok=True)
        self._done.mkdir(exist_ok=True)

    def driver_is(self, pid: int) -> None:
        """The driver of now, which leads a process group."""
        self._driver.write_text(str(pid))

    def order(self, step: Step) -> None:
        """The next process that reaches the step dies there."""
        (self._armed / step.name).touch()

    def happened(self, step: Step) -> bool:
        """Whether somebody has died there."""
        return (self._done / step.name).exists()

    def passed(self, step: AnyStep) -> None:
        """This process is at a step: one order is carried out once."""
        # A worker has received something before anybody reads from it.
        if server := sys.modules.get("wallaroo_spark.worker.buffer.delivery"):
            server.__dict__["ROWS_A_BATCH"] = ROWS_A_BATCH
        if follower := sys.modules.get("wallaroo_spark.checkpoint.commits"):
            follower.__dict__["PURGE_BATCHES"] = 1
        try:
            os.rename(self._armed / step.name, self._done / step.name)
        except FileNotFoundError:
            return
        if step in OF_THE_DRIVER:
            os.killpg(int(self._driver.read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def be_mortal() -> None:
    """Make this process, and all Python processes that it starts, carry out the orders, if there may be any."""
    if DIRECTORY not in os.environ:
        return
    # Every plan is named, though there are few streams.
    plan_files.INLINE_BYTES = 0
    os.environ["PYTHONPATH"] = os.pathsep.join(PATH)
    at_each(Deaths(Path(os.environ[DIRECTORY])).passed)
