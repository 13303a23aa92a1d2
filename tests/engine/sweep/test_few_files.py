"""The number of files of an application does not grow with its batches."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.engine.sweep.loop import Batches, Mortal
from tests.waiting import SECONDS, eventually
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey, ReplyTo
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.streams.batch_outputs import OutputFile
from wallaroo_spark.streams.inbox import InboxWriter

SCHEMA = "kind: Namespace\nname: shop\n---\nkind: Stream\nname: brief\nnamespace: shop\nttl: 1s\n"
BRIEF = PartitionKey("shop/brief", 0)
BATCHES = 300
KEPT_BY_SPARK = 100


class InOneProcess(Batches):
    """Batches whose tasks run in this process, and a log that is shortened as Spark shortens it."""

    def _task(self, batch: int, task: int, now: int, rows: Any) -> list[OutputFile]:
        for name in ("offsets", "commits"):
            (self._checkpoint / name / str(batch - KEPT_BY_SPARK)).unlink(missing_ok=True)
        # A task of an earlier try has left a file.
        with self._outputs.new_file(batch, f"left-{task}.arrow") as stream:
            stream.write(b"left")
        return [*self._outputs_of(batch, task, now, rows)]


def files_of(folder: Path) -> Counter[str]:
    """The number of files and folders, by their place in the folder."""
    return Counter("/".join(path.relative_to(folder).parts[:2]) for path in folder.rglob("*"))


@pytest.mark.long
@pytest.mark.timeout(4 * SECONDS)
def test_the_files_of_an_application_stay_few(tmp_path: Path) -> None:
    folder, document = tmp_path / "app", tmp_path / "shop.yaml"
    document.write_text(SCHEMA, encoding="utf-8")
    apply_files(SchemaStore(str(folder)), [str(document)], time.time())
    batches = InOneProcess(str(folder), Mortal(0, alone=True))
    # One gateway is retired after some batches, the other one is started again and again.
    gateways = {name: InboxWriter(str(folder), name) for name in ("g0", "g1")}

    def publish(gateway: str, number: int) -> None:
        writer = gateways[gateway]
        events: list[e.Event] = []
        if number % 20 == 0 or not writer.generation:
            events.append(e.GatewayStarted(gateway, writer.open()))
        events.append(e.RecordsPublished(ReplyTo(gateway, 1, number), (CloudEvent(str(number), gateway, "t"),)))
        writer.write([(BRIEF, encode(event)) for event in events])

    counts: dict[int, Counter[str]] = {}
    for number in range(BATCHES):
        publish("g1" if number % 2 and number < BATCHES // 3 else "g0", number)
        assert batches.run()
        batches.follow()
        counts[number] = files_of(folder)

    def expired() -> bool:
        batches.run()
        batches.follow()
        return not list((folder / "streams").rglob("*.parquet"))

    eventually(expired)
    # In each gateway's folder the claim of its generation and the generation's folder stay, and files of this second.
    for place, most in (
        ("_wallaroo/batches", 30),
        ("_wallaroo/inbox", 20),
        ("_wallaroo/tables", 5),
        ("_wallaroo/schema", 5),
    ):
        assert max(count[place] for count in counts.values()) <= most, (place, counts[BATCHES - 1])
    known = {"_wallaroo", "checkpoint", "streams"}
    assert {place.partition("/")[0] for place in counts[BATCHES - 1]} <= known
    assert len(list((folder / "_wallaroo" / "inbox" / "g1").iterdir())) <= 2
