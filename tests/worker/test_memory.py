"""A worker's process keeps what it has let go of; told of it in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import pyarrow as pa
from wallaroo_spark.worker.memory import keep_memory
kept = keep_memory()
print(kept, pa.default_memory_pool().backend_name)
"""


def test_arrow_keeps_what_it_lets_go_of() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    kept, backend = done.stdout.split()
    assert kept in {"True", "False"}
    assert (backend == "jemalloc") == (kept == "True")
