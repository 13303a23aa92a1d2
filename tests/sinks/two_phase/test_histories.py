"""Any history of drivers that die and sinks that fail, at any call and any step: each batch once, in its order."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.strategies import steady
from tests.sinks.two_phase.memory import MemorySink, partition_rows, pieces, whole
from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks import Prepared, Transaction
from wallaroo_spark.sinks.coordinator import Coordinator, Vote, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.steps import SinkStep, at_each

BATCHES = 3
PARTITIONS = 2
FATES = (
    "well",
    "well",
    "well",
    "fails before",
    "fails half-way",
    "fails behind",
    "dies before",
    "dies half-way",
    "dies behind",
)
STEPS = [step for step in SinkStep if not step.name.startswith("SERVER")]


class Died(BaseException):
    """Stands for the end of the process."""


class Fickle(MemorySink):
    """A sink in which each call succeeds, fails, succeeds by half, or succeeds with a lost answer, as ``fates``
    decides."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: Iterator[str] = iter(())

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        with self._fate() as half:
            super().commit(batch, prepared[: len(prepared) // 2] if half else prepared)

    def abort(self, transactions: Sequence[Transaction]) -> None:
        with self._fate() as half:
            super().abort(transactions[: len(transactions) // 2] if half else transactions)

    def recover(self) -> Sequence[Transaction]:
        with self._fate():
            return super().recover()

    @contextmanager
    def _fate(self) -> Iterator[bool]:
        fate, _, when = next(self.fates, "well").partition(" ")
        error = Died if fate == "dies" else SinkError
        if when == "before":
            raise error("before")
        yield when == "half-way"
        if when:
            raise error(when)


class FicklePreCommit(Fickle):
    """One that tries each batch before it is decided; ``tried`` while a try is open."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = False

    @contextmanager
    def pre_commit(self, batch: int, prepared: Sequence[Prepared]) -> Iterator[None]:
        assert not self.tried
        with self._fate():
            if not {one.transaction for one in prepared} <= self.held.keys():
                raise SinkError("a successor has aborted them")
        self.tried = True
        try:
            yield
        finally:
            self.tried = False


def run_of(sink: Fickle, sick: int | None, retried: bool) -> Callable[[int], list[Vote]]:
    """Runs the partitions of a batch; one of them may be sick, and another may have been tried before."""

    def run(batch: int) -> list[Vote]:
        sink.refuses = set() if sick is None else {sick}
        if retried:
            vote(sink, batch, 0, pieces(partition_rows(batch, 0)))
        attempt = int(retried)
        return [vote(sink, batch, one, pieces(partition_rows(batch, one)), attempt) for one in range(PARTITIONS)]

    return run


class Drivers:
    """Drivers one after the other, each of which delivers as Spark does: the first batch that was not delivered."""

    def __init__(self, folder: str, sink: Fickle) -> None:
        self.sink = sink
        self.folder = folder
        self.next = 0
        self._coordinator: Coordinator | None = None

    def live(self, dies_at: SinkStep | None, fates: Sequence[str], sick: int | None, retried: bool, other: str) -> None:
        """One call of Spark's; the driver goes on where nothing ended it."""
        self.sink.fates = iter(fates)
        coordinator = self._coordinator or Coordinator(self.sink, DecisionLog(self.folder, "orders"))

        def passed(step: object) -> None:
            if step is dies_at:
                raise Died

        run = run_of(self.sink, sick, retried)

        def overtaken(batch: int) -> list[Vote]:
            """This driver was thought to be dead: another one takes its place meanwhile."""
            votes: list[Vote] = run(batch)
            successor = Coordinator(self.sink, DecisionLog(self.folder, "orders"))
            if other == "delivers":
                successor.deliver(batch, run_of(self.sink, None, False))
            else:
                successor.recover(batch)
            return votes

        stop = at_each(passed)
        try:
            coordinator.deliver(self.next, overtaken if other else run)
        except SinkError:
            # The query failed, and its process may go on with another try.
            self._coordinator = coordinator
        except Died:
            self._coordinator = None
        else:
            self.next += 1
            self._coordinator = coordinator
        finally:
            stop()
        self.check()

    def check(self) -> None:
        """The invariants."""
        shown = self.sink.shown
        assert not getattr(self.sink, "tried", False), "a try of a batch is left open"
        assert len(shown) == len(set(shown)), "a row is there twice"
        done = [row for batch in range(self.next) for row in whole(batch)]
        assert shown[: len(done)] == done, "a delivered batch is not whole"
        assert set(shown[len(done) :]) <= set(whole(self.next)), "a batch is shown before its turn"


lives = st.tuples(
    st.none() | st.sampled_from(STEPS),
    st.lists(st.sampled_from(FATES), max_size=6),
    st.none() | st.integers(0, PARTITIONS - 1),
    st.booleans(),
    st.sampled_from(("", "", "recovers", "delivers")),
)


@settings(steady, max_examples=150)
@given(st.lists(lives, max_size=8), st.sampled_from([Fickle, FicklePreCommit]))
def test_each_batch_is_delivered_once_in_every_history(
    history: list[tuple[SinkStep | None, list[str], int | None, bool, str]], kind: type[Fickle]
) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(os, "fsync"):
        drivers = Drivers(folder, kind())
        for life in history:
            drivers.live(*life)
        while drivers.next < BATCHES:
            before = drivers.next
            drivers.live(None, (), None, False, "")
            assert drivers.next == before + 1, "with nothing in its way a batch is delivered"

        assert drivers.sink.shown[: BATCHES * len(whole(0))] == [row for n in range(BATCHES) for row in whole(n)]
        drivers.sink.fates = iter(())
        Coordinator(drivers.sink, DecisionLog(folder, "orders")).recover(drivers.next)
        assert drivers.sink.held == {}, "something is left without a decision"
