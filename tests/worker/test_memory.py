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


LETTING_GO = """
import os
import pyarrow as pa
from wallaroo_spark.worker.memory import GIVE_BACK_BYTES, giving_back, keep_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

kept = keep_memory()
for size in (GIVE_BACK_BYTES // 2, 2 * GIVE_BACK_BYTES):
    arrays = [pa.array([b"x" * (1 << 20)]) for _ in range(size >> 20)]
    with giving_back():
        before = resident()
        arrays.clear()
    print(kept, before - resident() > size // 2)
"""


def test_what_is_let_go_of_in_bulk_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", LETTING_GO], capture_output=True, text=True, timeout=60, check=True)
    little, much = (line.split() for line in done.stdout.splitlines())
    assert little[1] == "False" or little[0] == "False"
    assert much[1] == "True" or much[0] == "False"


def test_arrow_keeps_what_it_lets_go_of() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    kept, backend = done.stdout.split()
    assert kept in {"True", "False"}
    assert (backend == "jemalloc") == (kept == "True")
