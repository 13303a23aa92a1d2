"""A checkpoint that tests write as Spark does: each file under a temporary name first, then renamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wallaroo_spark.references import References

DATA = Path(__file__).parent / "data"


def offset(references: References, receiver: str = "orders") -> str:
    return json.dumps({"wallaroo": 1, "receiver": receiver, "streams": references})


def offsets_text(*sources: str) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}', *sources])


class Checkpoint:
    """A query's checkpoint; batch N ends stream 7 of ``shop-1`` at 100 * (N + 1)."""

    def __init__(self, folder: Path, query_id: str = "query-1") -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.put("metadata", json.dumps({"id": query_id}))

    def put(self, name: str, text: str) -> None:
        target = self.folder / name
        temporary = target.with_name(f".{target.name}.6f1c.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(target)

    def plan(self, batch: int) -> None:
        self.put(f"offsets/{batch}", offsets_text(offset({"shop-1": {"7": 100 * (batch + 1)}})))

    def commit(self, batch: int) -> None:
        self.put(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def run(self, batch: int) -> None:
        self.plan(batch)
        self.commit(batch)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")
