"""Python's garbage collector in the processes that Spark runs reading tasks in.

Source: ``docs/decisions/price-of-a-batch.md``.
"""

from __future__ import annotations

import gc
import sys


class LoadedCode:
    """The objects that modules have made when they were loaded, which stay as long as the process."""

    def __init__(self) -> None:
        self._modules = 0

    def set_aside(self) -> None:
        """Have collections pass over all objects that exist now; does nothing until more modules have been loaded.

        After each task PySpark's daemon runs a full collection in the task's process, before it looks for the next
        task. It visits each object of each module that Spark, Arrow and this package have loaded, and frees hardly any.
        """
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()


LOADED_CODE = LoadedCode()
"""That of this process."""
