"""A worker as a process of its own: ``python -m tests.source.worker_process URL RECEIVER SLOT SUBMISSION``."""

from __future__ import annotations

import sys

from tests.source.fleet import COOKIE, TOKEN
from wallaroo_spark.options import Options
from wallaroo_spark.registry import Registry
from wallaroo_spark.worker.run import WorkerThread
from wallaroo_spark.worker.service import WorkerSetup

if __name__ == "__main__":
    url, receiver, slot, submission = sys.argv[1:]
    options = Options(receiver=receiver, registry=url, workers=2, lease_seconds=30.0, cookie=COOKIE, host="127.0.0.1")
    with WorkerThread(WorkerSetup(options, int(slot), int(submission), TOKEN), Registry(url, receiver)):
        sys.stdin.read()
