"""Between two tasks a process collects nothing that its modules have made, and acknowledges the next task at once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.runtime.python_tasks import collected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK = """
import gc, json, sys
from pyspark import TaskContext
from wallaroo_spark.options import Options
from wallaroo_spark.source.ranges import RangePartition
from wallaroo_spark.source.reader import WallarooStreamReader

def task():
    part = RangePartition(0, [], {}, Options(receiver="orders", registry="redis://127.0.0.1:1", token="token"))
    list(WallarooStreamReader(Options.parse({"receiver": "orders"})).read(part))
    return gc.get_freeze_count(), len(gc.get_objects())

found = [task()]
context = TaskContext()
context._localProperties = {}
TaskContext._setTaskContext(context)
found += [task(), task()]
sys.modules.setdefault("one more", sys)
found += [task()]
print(json.dumps(found))
"""

# Spark's side sends a task, the daemon's function `worker` runs it and answers, and the daemon collects garbage.
TASKS = """
import gc, json, socket
from pyspark import TaskContext
from wallaroo_spark.runtime.python_tasks import TASK_PROCESS

def task():
    TASK_PROCESS.prepare()

def worker(sock, authenticated):
    while data := sock.recv(100):
        task()
        sock.sendall(data)
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)

TaskContext._setTaskContext(TaskContext())
listening = socket.create_server(("127.0.0.1", 0))
spark = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
found = []
for _ in range(20):
    spark.sendall(b"a task")
    found.append(worker(accepted, True))
    spark.recv(100)
gc.collect()
print(json.dumps([found, accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK),
                  accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)]))
"""

SERVICE = """
import gc, json
from wallaroo_spark.runtime.service import serve

class Service:
    thresholds = []
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def alive(self, seconds):
        self.thresholds.append(gc.get_threshold())
        return False

before = gc.get_threshold()
list(serve(Service(), iter(())))
print(json.dumps([before, Service.thresholds, gc.get_threshold()]))
"""


def printed(program: str) -> object:
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout)


def test_the_objects_of_loaded_modules_are_set_aside_in_a_task_and_again_when_more_were_loaded() -> None:
    found = printed(TASK)
    assert isinstance(found, list)
    (outside, all_objects), (frozen, left), (again, _), (more, _) = found

    assert outside == 0, "a program that reads outside of Spark's tasks is left alone"
    assert frozen > 10_000
    assert left < all_objects / 10
    assert again == frozen
    assert more > frozen


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux delays and says so")
def test_the_collection_behind_a_task_ends_the_delay_of_acknowledgements() -> None:
    found = printed(TASKS)
    assert isinstance(found, list)
    behind_tasks, before_the_next, no_delay = found

    assert behind_tasks[-1] == 0, "the kernel delays acknowledgements in a connection that answers"
    assert before_the_next == 1
    assert no_delay


def test_a_service_looks_for_cyclic_garbage_rarely_and_leaves_its_process_as_it_was() -> None:
    found = printed(SERVICE)
    assert isinstance(found, list)
    before, [serving], after = found
    assert serving[0] > 100 * before[0]
    assert after == before


class Interrupted:
    """A DataFrame whose job is interrupted, as that of a batch is when its query is stopped."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def collect(self) -> list[Any]:
        thread = self._spark._jvm.java.lang.Thread  # type: ignore[union-attr]  # the session is a classic one
        thread.currentThread().interrupt()
        thread.sleep(1000)
        return []


def test_a_batch_that_is_stopped_ends_with_an_error_in_which_spark_finds_that_within_the_stack_of_a_query(
    spark: SparkSession,
) -> None:
    with pytest.raises(InterruptedError) as stopped:
        collected(Interrupted(spark))  # type: ignore[arg-type]  # it has what is called
    text = "".join(traceback.format_exception(stopped.value))

    assert spark._jvm is not None
    pattern = spark._jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution.PROXY_ERROR()
    assert pattern.findFirstIn(text).isDefined()
    assert len(text) < 2000
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        collected(spark.sql("SELECT 1 / 0"))
    assert collected(spark.range(2)) == [(0,), (1,)]
