"""Full collections in a reading task's process do not visit the code that it has loaded."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.waiting import SECONDS

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


def test_the_objects_of_loaded_modules_are_set_aside_in_a_task_and_again_when_more_were_loaded() -> None:
    ended = subprocess.run([sys.executable, "-c", TASK], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert not ended.returncode, ended.stderr
    (outside, all_objects), (frozen, left), (again, _), (more, _) = json.loads(ended.stdout)

    assert outside == 0, "a program that reads outside of Spark's tasks is left alone"
    assert frozen > 10_000
    assert left < all_objects / 10
    assert again == frozen
    assert more > frozen
