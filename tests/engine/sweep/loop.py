"""Lives of an application without Spark: a small loop does Spark's part, and each life may die at one of its points.

One process (:func:`main`) imports everything and forks each life, so a life costs little. A life is a gateway, the
driver with its source, the tasks of its batches (forks of the driver) and the work after commits. All of that is the
product's; the loop plans, runs and commits batches as Spark does: ``offsets/N`` is written before a batch runs,
``commits/N`` after it, the state of a batch has a number, and the task of a process that has died is tried again.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from tests.engine.sweep import points, shop
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.application.housekeeping import DriverInbox, Housekeeping, keys_of
from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.engine.operator.functions import StageFunctions
from wallaroo_spark.engine.operator.processor import open_tables
from wallaroo_spark.engine.operator.rows import output_rows
from wallaroo_spark.engine.operator.turn import InputRow, TurnLimits, take_turn
from wallaroo_spark.engine.source.datasource import InputReader, read_rows
from wallaroo_spark.observe.published import GaugeFile
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey, ReplyTo, StreamOutput
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.controller.stored.seen_ids import SeenCache
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.steps import at_each
from wallaroo_spark.streams.batch_outputs import BatchOutputs, OutputFile, manifest_of, write_outputs
from wallaroo_spark.streams.inbox import InboxWriter
from wallaroo_spark.streams.places import checkpoint_of
from wallaroo_spark.streams.rows import OUTPUT

LONGEST_LIFE = 120
"""Seconds; a limit, never an expectation."""
TASKS = 2
TRIES = 4
"""Tries of a task, as Spark's default."""
GATEWAY = "g0"
LIMITS = TurnLimits(records=3)
"""Small, so that turns end at their limit."""
MOST_BATCHES = 500
"""Batches of one life; more is a circle."""
SOON = 60_000
"""Milliseconds; what is due later is the time limit of deliveries, and wakes a key also when they have ended."""
_JSON = (("datacontenttype", "application/json"),)
Request = tuple[str, int]
"""A request of a publisher: the stream, and a number."""


class Mortal:
    """Counts the points of a life, in all of its processes, and kills the process that comes to one of them."""

    def __init__(self, die_at: int, *, alone: bool) -> None:
        self._die_at, self._alone = die_at, alone
        self._count = mmap.mmap(-1, 8)
        self._leader = os.getpid()

    @property
    def count(self) -> int:
        """The points so far."""
        return int.from_bytes(self._count[:8], "big")

    def passed(self, point: str) -> None:
        """This process is at a point."""
        number = self.count + 1
        self._count[:8] = number.to_bytes(8, "big")
        if number == self._die_at:
            print(json.dumps({"point": point}), flush=True)
            if not self._alone:
                os.kill(self._leader, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class Batches:
    """The driver of one life, and Spark's part."""

    def __init__(self, folder: str, mortal: Mortal) -> None:
        self._folder, self._mortal = folder, mortal
        self._checkpoint = Path(checkpoint_of(folder))
        for name in ("offsets", "commits", "state"):
            (self._checkpoint / name).mkdir(parents=True, exist_ok=True)
        self._files = CheckpointFiles(str(self._checkpoint))
        self._reader = InputReader(folder, 20)
        self._outputs = BatchOutputs(folder)
        inbox = DriverInbox(folder)
        # A shorter time than users may give.
        settings = SimpleNamespace(
            folder=folder, spark=None, keep=2, move_seconds=0, retention_seconds=0.2, history_seconds=None, delta=False
        )
        self._housekeeping = Housekeeping(self._files, cast(ApplicationSettings, settings), inbox, GaugeFile(folder))
        committed = self._files.committed()
        self.committed = -1 if committed is None else committed
        assert self._housekeeping.newest_committed() <= self.committed

    def run(self) -> bool:
        """Plan, run and commit one batch. Returns whether there was one."""
        batch = self.committed + 1
        planned = self._log("offsets", batch)
        start = self._log("offsets", self.committed)
        before = json.loads(start[2]) if start else self._reader.initialOffset()
        if planned is None:
            end = self._reader.latestOffset(before, None)  # type: ignore[arg-type]  # the limit is not used
            self._mortal.passed("a batch is planned")
            if end == before:
                return False
            # A later batch has a later time, as with Spark.
            metadata = {"batchTimestampMs": max(time.time_ns() // 1_000_000, _time(start) + 1), "conf": {}}
            self._write("offsets", batch, "v1", json.dumps(metadata), json.dumps(end))
            planned = self._log("offsets", batch)
            assert planned is not None
        rows = self._rows(before, json.loads(planned[2]))
        files = [file for task in range(TASKS) for file in self._task(batch, task, _time(planned), rows[task])]
        self._mortal.passed("all tasks have written their outputs")
        manifest = manifest_of(batch, files, self._outputs.manifest(batch - 1) if batch else None)
        self._outputs.seal(manifest)
        self._write("commits", batch, "v1", '{"nextBatchWatermarkMs":0}')
        self.committed = batch
        return True

    def follow(self) -> None:
        """The work after a commit."""
        if self.committed >= 0:
            self._housekeeping.work(self.committed)

    @property
    def timers(self) -> Mapping[str, int]:
        """The armed timers."""
        manifest = self._outputs.manifest(self.committed) if self.committed >= 0 else None
        return manifest.timers if manifest is not None else {}

    def _rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[PartitionKey, list[InputRow]]]:
        found: list[dict[PartitionKey, list[InputRow]]] = [{} for _ in range(TASKS)]
        for part in self._reader.partitions(start, end):
            for batch in read_rows(part):  # type: ignore[arg-type]  # they are its own
                for row in batch.to_pylist():
                    key = PartitionKey(row["stream"], row["partition"])
                    values = (row[name] for name in ("rank", "origin", "sequence", "place", "event"))
                    found[_task_of(key)].setdefault(key, []).append(InputRow(*values))
        return found

    def _task(self, batch: int, task: int, now: int, rows: dict[PartitionKey, list[InputRow]]) -> list[OutputFile]:
        """Run a task in a process of its own, again when that has died."""
        for _ in range(TRIES):
            ours, theirs = os.pipe()
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    os.close(ours)
                    texts = [file.to_json() for file in self._outputs_of(batch, task, now, rows)]
                    with os.fdopen(theirs, "w") as pipe:
                        json.dump(texts, pipe)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            os.close(theirs)
            with os.fdopen(ours) as pipe:
                answer = pipe.read()
            _, ended = os.waitpid(pid, 0)
            if ended == 0:
                return [OutputFile.from_json(text) for text in json.loads(answer)]
            assert os.WIFSIGNALED(ended), f"task {task} of batch {batch} failed"
        raise RuntimeError(f"task {task} of batch {batch} died {TRIES} times")

    def _outputs_of(
        self, batch: int, task: int, now: int, rows: dict[PartitionKey, list[InputRow]]
    ) -> Iterator[OutputFile]:
        before, cache = self._checkpoint / "state" / f"{batch - 1}-{task}", SeenCache()
        states: dict[PartitionKey, dict[bytes, bytes]] = pickle.loads(before.read_bytes()) if batch else {}
        functions, found = StageFunctions(), []
        for key, inputs in sorted(rows.items()):
            stored = states.setdefault(key, {})
            table = open_tables(self._folder)
            result = take_turn(key, now, inputs, stored, table, functions, LIMITS, cache)
            stored.update({name: value for name, value in result.changes.items() if value is not None})
            for name in [name for name, value in result.changes.items() if value is None]:
                stored.pop(name, None)
            found += [
                (*key, row.kind.value, row.target, row.first, row.last, row.rows, row.body)
                for row in output_rows(key, now, result)
            ]
        after = self._checkpoint / "state" / f"{batch}-{task}"
        draft = after.with_name(f".{after.name}")
        draft.write_bytes(pickle.dumps(states))
        os.replace(draft, after)
        (self._checkpoint / "state" / f"{batch - 2}-{task}").unlink(missing_ok=True)
        columns = {name: [row[place] for row in found] for place, name in enumerate(OUTPUT.names)}
        yield from write_outputs(self._folder, batch, [pa.RecordBatch.from_pydict(columns, OUTPUT)])

    def _log(self, name: str, batch: int) -> list[str] | None:
        path = self._checkpoint / name / str(batch)
        return path.read_text().split("\n") if path.exists() else None

    def _write(self, name: str, batch: int, *lines: str) -> None:
        draft = self._checkpoint / name / f".{batch}.tmp"
        draft.write_text("\n".join(lines))
        os.replace(draft, self._checkpoint / name / str(batch))


def _time(planned: list[str] | None) -> int:
    return json.loads(planned[1])["batchTimestampMs"] if planned else 0


def _task_of(key: PartitionKey) -> int:
    return (len(key.stream) + key.partition) % TASKS


class Gateway:
    """A gateway with its clients: a publisher that repeats what was not answered, and a worker for each stage."""

    def __init__(self, folder: str, wanted: list[Request], answered: Callable[[Request, list[Any]], None]) -> None:
        self._folder, self._answered = folder, answered
        self._inbox, self._outputs = InboxWriter(folder, GATEWAY), BatchOutputs(folder)
        self._generation = self._inbox.open()
        self._requests = 0
        self._waiting: dict[int, Request] = {}
        self.queue: list[tuple[PartitionKey, e.Event]] = []
        keys = keys_of(SchemaStore(folder).newest())
        self.queue += [(key, e.GatewayStarted(GATEWAY, self._generation)) for key in keys]
        self._joined: set[PartitionKey] = set()
        for key in keys:
            self._join(key)
        for request in wanted:
            self._publish(request)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to write, and nobody waits for an answer."""
        return not self.queue and not self._waiting

    def flush(self) -> None:
        """Write the events that wait as one file."""
        queue, self.queue = self.queue, []
        if queue:
            self._inbox.write([(key, encode(event)) for key, event in queue])

    def follow(self, batch: int) -> None:
        """Act on the messages of a committed batch."""
        for instruction, _ in self._outputs.messages(batch, GATEWAY):
            match instruction:
                case i.AnswerRequest() as one if one.reply_to.generation == self._generation:
                    request = self._waiting.pop(one.reply_to.request, None)
                    if request is not None:
                        self._answered(request, [(*written.target, *written.offsets) for written in one.written])
                case i.RefuseRequest() as one if one.reply_to.request in self._waiting:
                    raise AssertionError(one)
                case i.DeliverInputs() as one if one.member.startswith(f"{GATEWAY}.{self._generation}."):
                    self._work(one)

    def _reply(self) -> ReplyTo:
        self._requests += 1
        return ReplyTo(GATEWAY, self._generation, self._requests)

    def _publish(self, request: Request) -> None:
        stream, number = request
        key = PartitionKey(f"shop/{stream}", number % 2 if stream == "orders" else 0)
        told = json.dumps({"order": number, "price": number}).encode()
        kind = "shop.order.created" if stream == "orders" else "shop.told"
        event = CloudEvent(f"{stream}-{number}", "/tests/sweep", kind, told, _JSON)
        reply = self._reply()
        self._waiting[reply.request] = request
        if stream == "reminders":
            due = time.time_ns() // 1_000_000 + 50
            self.queue.append((key, e.RecordsDelayed(reply, (event,), due)))
        else:
            self.queue.append((key, e.RecordsPublished(reply, (event,))))

    def _join(self, key: PartitionKey) -> None:
        stages = {"shop/orders": ("fulfil", "pay", "ship"), "shop/failed": ("compensate", "release", "refund")}
        pipeline, *names = stages.get(key.stream, ("",))
        for name in names:
            member = f"{GATEWAY}.{self._generation}.{key}/{name}"
            self.queue.append((key, e.StageJoined(self._reply(), member, f"shop/{pipeline}", name, 2)))

    def _work(self, one: i.DeliverInputs) -> None:
        key = _key_of(one.member)
        delivery, outputs = one.delivery, {name: json.loads(output.data) for name, output in one.outputs}
        order = json.loads(one.root.data or b"") if one.root is not None else outputs.get("release", {})
        number, kind = order["order"], delivery.stage
        told = json.dumps({"order": number, **outputs.get("reserve", {})}).encode()
        if kind == "ship":
            self.queue.append((key, e.TransactionBegun(self._reply(), one.member, delivery)))
            booked = (_event("shop.order.booked", told),)
            target = PartitionKey("shop/ledger", 0)
            self.queue.append((key, e.StatementAdded(self._reply(), one.member, delivery, target, booked)))
        streams = {"pay": "receipts", "ship": "shipments", "refund": "returns"}
        written: tuple[StreamOutput, ...] = ()
        if kind in streams:
            target = PartitionKey(f"shop/{streams[kind]}", number % 2 if kind == "ship" else 0)
            written = (StreamOutput(target, (_event(f"shop.order.{kind}", told),)),)
        output = Payload(told, "application/json")
        self.queue.append((key, e.DeliveryAcked(self._reply(), one.member, delivery, output, written)))


def _event(kind: str, data: bytes) -> CloudEvent:
    return CloudEvent(os.urandom(8).hex(), "/tests/workers", kind, data, _JSON)


def _key_of(member: str) -> PartitionKey:
    stream, partition, _ = member.split(".", 2)[2].rsplit("/", 2)
    return PartitionKey(stream, int(partition))


def live(asked: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
    """One life, until all that is asked for is done, or until its death."""
    folder = asked["folder"]
    mortal = Mortal(asked["die_at"], alone=asked["alone"])
    points.watch_files(folder, mortal.passed)
    at_each(lambda step: mortal.passed(f"step {step.name}"))
    if asked["version"] is not None:
        shop.apply(Path(folder), asked["version"], quick=True)
    wanted = [(stream, number) for stream, number in asked["wanted"]]
    driver = Batches(folder, mortal)
    gateway = Gateway(folder, wanted, lambda request, places: answer({"request": request, "places": places}))
    for _ in range(MOST_BATCHES):
        gateway.flush()
        moved = driver.run()
        if moved:
            gateway.follow(driver.committed)
        driver.follow()
        if not moved and gateway.idle:
            if all(due > time.time_ns() // 1_000_000 + SOON for due in driver.timers.values()):
                answer({"done": mortal.count})
                return
            time.sleep(0.005)
    raise AssertionError(f"it does not come to rest: {driver.timers}, {gateway.queue[:3]}")


def main() -> None:
    """Fork a life for each line of standard input, and pass on what it says."""
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.setsid()
                signal.alarm(LONGEST_LIFE)
                live(asked, lambda told: print(json.dumps(told), flush=True))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(ended)}), flush=True)


if __name__ == "__main__":
    main()
