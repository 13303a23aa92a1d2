"""A receiver with the HTTP door inside Spark: what is answered is in the table, whatever dies meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from pyspark.errors import StreamingQueryException

from tests.receiver.support import COOKIE, Batches
from tests.waiting import SECONDS, eventually
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CURL = shutil.which("curl")
PAUSE = 0.1
"""Seconds between two attempts of a client, as its Retry-After would be."""


def open_receiver(spark: SparkSession, **options: Any) -> Receiver:
    return Receiver(spark, "orders", workers=1, cookie=COOKIE, lease_seconds=2, http_port=0, **options)


def door_of(receiver: Receiver) -> str:
    """The URL of the door, once a worker serves."""
    (door,) = eventually(lambda: receiver.status().doors, "a worker has the door", pause=0.1)
    return str(door.address)


class Sender:
    """A client that repeats each message until it is answered with 200, wherever the door is by then."""

    def __init__(self, receiver: Receiver, name: str = "") -> None:
        self.receiver = receiver
        self.name = name
        self.answered: list[bytes] = []
        self.stopped = threading.Event()

    def send(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            value = f"{self.name or 'somebody'} {number}".encode()
            while not self._posted(value, number):
                if self.stopped.wait(PAUSE):
                    return
            self.answered.append(value)

    def _posted(self, value: bytes, number: int) -> bool:
        with suppress(OSError, http.client.HTTPException):
            doors = self.receiver.status().doors
            if not doors:
                return False
            place = urlsplit(doors[0].address)
            fields = {"Content-Type": "text/plain", "Authorization": f"Bearer {COOKIE}"}
            if self.name:
                fields |= {"Wallaroo-Instance": self.name, "Wallaroo-Token": str(number)}
            with closing(http.client.HTTPConnection(str(place.hostname), place.port or 0, timeout=60)) as connection:
                connection.request("POST", "/v1/streams/orders", value, fields)
                answer = connection.getresponse()
                answer.read()
                return answer.status == 200
        return False


def kill_worker(receiver: Receiver) -> None:
    """Kill the worker's process, and wait for the next one."""
    slot = eventually(lambda: one if (one := receiver.status().slots[0]).answers else None, "a worker serves")
    os.kill(slot.pid, signal.SIGKILL)
    eventually(
        lambda: (one := receiver.status().slots[0]).answers and one.pid != slot.pid, "the next worker serves", pause=0.1
    )


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
def test_a_row_is_in_the_table_when_curl_has_its_answer(spark: SparkSession, tmp_path: Path) -> None:
    table, tokens = str(tmp_path / "table"), tmp_path / "tokens"
    tokens.write_text("shop a-token-of-the-shop\n")
    with open_receiver(spark, door_tokens=str(tokens)) as receiver:
        writer = receiver.stream().writeStream.format("parquet").option("path", table)
        receiver.start_query(writer, checkpoint=str(tmp_path / "checkpoint"))
        command = [str(CURL), "-sS", f"{door_of(receiver)}/v1/streams/orders"]
        command += ["-H", "Authorization: Bearer a-token-of-the-shop"]
        command += ["-H", "Content-Type: application/json", "-d", '[{"order": 1}, {"order": 2}]']
        said = subprocess.run(command, capture_output=True, check=True, timeout=SECONDS).stdout

        assert json.loads(said)["committed"] == 2
        rows = spark.read.parquet(table).selectExpr("instance", "stream", "cast(value as string) as value").collect()

    assert sorted(row.value for row in rows) == ['{"order": 1}', '{"order": 2}']
    assert {(row.instance, row.stream) for row in rows} == {("http/worker-0", "orders")}


def test_workers_that_are_killed_lose_nothing_that_was_answered_and_repeat_nothing_that_has_a_token(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = Batches()
    with open_receiver(spark) as receiver, ThreadPoolExecutor() as pool:
        query = receiver.start_query(
            receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint")
        )
        named = [Sender(receiver, f"shop-{number}") for number in range(2)]
        nameless = Sender(receiver)
        sending = [pool.submit(sender.send, 1, 40) for sender in (*named, nameless)]
        try:
            for answered in (5, 15):
                eventually(lambda: len(named[0].answered) >= answered, "some are answered")  # noqa: B023 -- called here
                kill_worker(receiver)
            for one in sending:
                one.result(SECONDS)
        finally:
            for sender in (*named, nameless):
                sender.stopped.set()
        assert query.isActive
        query.stop()

    rows = batches.all
    for sender in named:
        mine = [bytes(row.value) for row in rows if row.instance == f"http/{sender.name}"]
        assert mine == sender.answered
    others = Counter(bytes(row.value) for row in rows if row.instance == "http/worker-0")
    assert others.keys() >= set(nameless.answered)


def test_a_query_goes_on_without_rows_that_nobody_can_send_again(spark: SparkSession, tmp_path: Path) -> None:
    batches, checkpoint = Batches(), str(tmp_path / "checkpoint")
    with open_receiver(spark, door_replay_timeout=60) as receiver, ThreadPoolExecutor() as pool:

        def start() -> Any:
            return receiver.start_query(receiver.stream().writeStream.foreachBatch(batches), checkpoint=checkpoint)

        batches.broken = True
        query = start()
        door_of(receiver)
        named, nameless = Sender(receiver, "shop-1"), Sender(receiver)
        sending = [pool.submit(sender.send, 1, 3) for sender in (named, nameless)]
        try:
            # A batch with rows is planned and fails; then the rows are lost, and it is planned to run again.
            with pytest.raises(StreamingQueryException, match="the sink is broken"):
                query.awaitTermination(120)
            kill_worker(receiver)
            batches.broken = False
            query = start()
            for one in sending:
                one.result(SECONDS)
        finally:
            for sender in (named, nameless):
                sender.stopped.set()
        assert query.isActive
        query.stop()

    assert [bytes(row.value) for row in batches.all if row.instance == "http/shop-1"] == named.answered
    assert {bytes(row.value) for row in batches.all if row.instance == "http/worker-0"} >= set(nameless.answered)


def test_a_receiver_that_starts_again_recognises_what_its_checkpoint_has(spark: SparkSession, tmp_path: Path) -> None:
    batches, checkpoint = Batches(), str(tmp_path / "checkpoint")
    answered: list[bytes] = []
    for run in range(2):
        with open_receiver(spark) as receiver:
            query = receiver.start_query(receiver.stream().writeStream.foreachBatch(batches), checkpoint=checkpoint)
            door_of(receiver)
            sender = Sender(receiver, "shop-1")
            # The second run sends again what the first one has committed.
            sender.send(1, 3 + run)
            answered = sender.answered
            query.stop()

    assert [bytes(row.value) for row in batches.all] == answered
