"""Offsets that name their plan: progress finds the references, and Spark's own purge decides which plans go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.checkpoint.conftest import Checkpoint, offset, offsets_text
from wallaroo_spark.checkpoint import CheckpointFiles, CheckpointWatcher, QueryProgress
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import changed
from wallaroo_spark.sidecar.plan_files import NAMED_VERSION, NamedPlan, PlanFiles
from wallaroo_spark.source.plan_book import PlanBook
from wallaroo_spark.steps import AnyStep, Step, at_each

MANY = {f"shop-{n}": {"1": 0} for n in range(20)}


class Run:
    """A query whose plans are named, but for those of the first ``inline`` batches."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.store = PlanFiles(str(checkpoint.folder), "orders")
        self.book = PlanBook("orders", "increasing", lambda: self.store, inline_bytes=100, beside=lambda work: work())
        self.value: dict[str, Any] = self.book.begin({})
        self.batch = 0

    def plan(self, changes: Any) -> None:
        self.value = self.book.after(self.value, changes)
        self.checkpoint.put(f"offsets/{self.batch}", offsets_text(json.dumps(self.value)))

    def run(self, changes: Any) -> None:
        self.plan(changes)
        self.checkpoint.commit(self.batch)
        self.batch += 1

    def purge(self, keep: int) -> None:
        for log in ("offsets", "commits"):
            for batch in range(self.batch - keep):
                (self.checkpoint.folder / log / str(batch)).unlink(missing_ok=True)


@pytest.fixture
def run(checkpoint: Checkpoint) -> Run:
    return Run(checkpoint)


def test_progress_has_the_references_of_named_plans_and_the_changes_between_batches(run: Run) -> None:
    files = CheckpointFiles(str(run.checkpoint.folder))
    run.run({"shop-0": {"1": 1}})
    run.run(MANY)
    first = files.progress("orders").committed
    assert first is not None
    assert first.references == MANY
    run.run({"shop-3": {"1": 9}})
    run.plan({"shop-4": {"1": 2}})
    progress = files.progress("orders")

    assert progress.committed is not None
    assert progress.planned is not None
    assert progress.committed.references == {**MANY, "shop-3": {"1": 9}}
    assert progress.planned.references == {**MANY, "shop-3": {"1": 9}, "shop-4": {"1": 2}}
    assert changed(first.references, progress.committed.references) == {"shop-3": {"1": 9}}
    assert files.receivers() == ("orders",)


def test_two_sources_that_read_the_same_plan_are_one(run: Run) -> None:
    run.plan(MANY)
    line = json.dumps(run.value)
    run.checkpoint.put("offsets/0", offsets_text(line, "-", line))
    planned = CheckpointFiles(str(run.checkpoint.folder)).progress("orders").planned

    assert planned is not None
    assert planned.references == MANY


def test_the_first_of_two_named_plans_counts(run: Run) -> None:
    run.run(MANY)
    ahead = run.book.after(run.value, {"shop-1": {"1": 5}})
    behind = run.book.after(run.value, {"shop-1": {"1": 3}, "shop-2": {"1": 1}})
    run.checkpoint.put("offsets/1", offsets_text(json.dumps(ahead), json.dumps(behind)))
    planned = CheckpointFiles(str(run.checkpoint.folder)).progress("orders").planned

    assert planned is not None
    assert planned.references == {**MANY, "shop-1": {"1": 3}}


def test_plans_go_when_spark_has_purged_the_offsets_that_lead_to_them(run: Run) -> None:
    files = CheckpointFiles(str(run.checkpoint.folder))
    for number in range(300):
        run.run({shop: {"1": number} for shop in MANY} if number % 3 == 0 else {"shop-1": {"1": number}})
        if number % 10 == 9:
            run.purge(keep=20)
            files.progress("orders")
            files.purge_plans("orders")

    left = run.store.files()
    assert len(left) < 60
    oldest = CheckpointFiles(str(run.checkpoint.folder))
    for batch in range(280, 300):
        named = NamedPlan.of(json.loads((run.checkpoint.folder / f"offsets/{batch}").read_text().splitlines()[2]))
        assert named is not None
        assert oldest._named.read("orders", named, oldest._plan_store)


def test_a_purge_that_ends_half_way_is_finished_by_the_next(run: Run) -> None:
    for number in range(60):
        run.run({shop: {"1": number} for shop in MANY})
    run.purge(keep=2)
    before = len(run.store.files())

    def die(step: AnyStep) -> None:
        if step is Step.PLANS_HALF_PURGED:
            raise CheckpointError("the process dies here")

    dying = CheckpointFiles(str(run.checkpoint.folder))
    expected = dying.progress("orders").committed
    done = at_each(die)
    try:
        with pytest.raises(CheckpointError, match="dies here"):
            dying.purge_plans("orders")
    finally:
        done()
    assert before - 10 < len(run.store.files()) < before

    files = CheckpointFiles(str(run.checkpoint.folder))
    assert files.progress("orders").committed == expected
    files.purge_plans("orders")
    assert len(run.store.files()) < 10
    assert CheckpointFiles(str(run.checkpoint.folder)).progress("orders").committed == expected


def test_offsets_without_names_keep_every_plan(run: Run) -> None:
    files = CheckpointFiles(str(run.checkpoint.folder))
    run.run(MANY)
    files.progress("orders")
    run.checkpoint.put("offsets/0", offsets_text(offset({"shop-1": {"1": 1}})))

    assert files.purge_plans("orders") == 0
    assert len(run.store.files()) == 1


def test_a_plan_that_is_not_beside_the_checkpoint_is_named(run: Run) -> None:
    run.run(MANY)
    for path in run.checkpoint.folder.rglob("*.snapshot"):
        path.unlink()

    with pytest.raises(CheckpointError, match="is missing, and an offset of the checkpoint names it"):
        CheckpointFiles(str(run.checkpoint.folder)).progress("orders")


def test_a_failing_purge_keeps_nobody_from_an_acknowledgement(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CheckpointFiles, receiver: str) -> int:
        raise CheckpointError("no")

    monkeypatch.setattr(CheckpointFiles, "purge_plans", fail)
    run.run(MANY)
    seen: list[QueryProgress] = []
    watcher = CheckpointWatcher(CheckpointFiles(str(run.checkpoint.folder)), "orders", seen.append)
    watcher._look()
    assert len(seen) == 1


def test_a_release_that_knows_no_names_refuses_them_by_their_version(run: Run) -> None:
    run.plan(MANY)
    # Releases without names accept version 1 alone, and say so with the version that they found.
    assert run.value["wallaroo"] == NAMED_VERSION == 2
    assert "streams" not in run.value
