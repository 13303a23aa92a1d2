"""PySpark's daemon that has imported the modules of its workers already, so that each fork is ready at once.

A test's Spark forks many workers, and each would spend a second on importing the same. ``java_options`` in
``tests/class_archive.py`` has Spark start this one. Nothing imported here starts a thread that a fork would need.
"""

from __future__ import annotations

import importlib
import os

from pyspark.daemon import manager

# Before numpy is imported, or it starts a thread for each core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

for _name in ("pandas", "pyspark.worker", "wallaroo_spark.source.reader", "wallaroo_spark.worker.run"):
    importlib.import_module(_name)

if __name__ == "__main__":
    manager()
