"""A worker's process keeps freed memory. It is measured in a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.waiting import SECONDS

pytestmark = pytest.mark.no_cover

PROGRAM = """
import pyarrow as pa
from wallaroo_spark.worker.memory import keep_memory
kept = keep_memory()
print(kept, pa.default_memory_pool().backend_name)
"""


def test_arrow_keeps_freed_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=SECONDS, check=True)
    kept, backend = done.stdout.split()
    assert kept in {"True", "False"}
    assert (backend == "jemalloc") == (kept == "True")


SERVING = """
import ctypes
from wallaroo_spark.options import Options
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.worker.run import run_worker
from wallaroo_spark.worker.service import WorkerSetup

class Account(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks used free top"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

with EmbeddedRedis() as server, Registry(server.url, "orders") as registry:
    options = Options.parse({"receiver": "orders", "registry": server.url, "host": "127.0.0.1"})
    beats = run_worker(WorkerSetup(options, 0, registry.next_submission(), "a token"), registry, iter(()))
    while not any(lease.flight for lease in registry.leases().values()):
        next(beats)
    account = ctypes.CDLL(None).mallinfo2
    account.restype = Account
    print(account().free)
    beats.close()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc alone keeps this account")
def test_a_worker_frees_the_memory_of_its_keys() -> None:
    done = subprocess.run([sys.executable, "-c", SERVING], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert int(done.stdout) < 8 << 20
