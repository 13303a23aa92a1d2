"""Python's garbage collector in the processes in which Spark runs reading tasks.

Source: ``docs/decisions/price-of-a-batch.md``.
"""

from __future__ import annotations

import gc
import sys


class LoadedCode:
    """The objects that modules have made when they were loaded. They live as long as the process."""

    def __init__(self) -> None:
        self._modules = 0

    def set_aside(self) -> None:
        """Exclude all objects that exist now from garbage collection. Does nothing while no more modules are loaded.

        After each task, PySpark's daemon runs a full collection in the task's process before the process takes the next
        task. That collection visits each object of each module that Spark, Arrow and this package have loaded, and
        frees hardly any of them.
        """
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()


LOADED_CODE = LoadedCode()
"""The loaded code of this process."""
