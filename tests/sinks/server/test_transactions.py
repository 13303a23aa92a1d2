"""A sink server's state is the fold of its log, after any requests."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.protocol.strategies import steady
from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.server.journal import (
    LONGEST_ID,
    LogRecord,
    OutputPart,
    ServerTransactions,
    TransactionState,
    prepare_record,
)

PREPARED, COMMITTED = TransactionState.PREPARED, TransactionState.COMMITTED


def part(transaction: str = "t", worker: str = "w-0", start: int = 0, end: int = 5) -> OutputPart:
    return OutputPart(transaction, worker, start, end, f"{transaction}.part")


def folded(records: list[LogRecord]) -> ServerTransactions:
    transactions = ServerTransactions()
    for record in records:
        transactions.apply(record)
    transactions.validate()
    return transactions


def told(do: str, transaction: str = "t") -> LogRecord:
    return {"do": do, "transaction": transaction}


def test_a_transaction_that_is_committed_ends_in_the_output() -> None:
    transactions = folded([prepare_record(part())])
    assert transactions.of_worker("w-0", PREPARED) == part()
    assert transactions.offset("w-0") == 0

    transactions.apply(told("commit"))
    assert transactions.of_worker("w-0", PREPARED) is None
    assert transactions.of_worker("w-0", COMMITTED) == part()
    assert transactions.offset("w-0") == 0

    transactions.apply(told("append"))
    assert transactions.offset("w-0") == 5
    assert transactions.state("t") is TransactionState.UNKNOWN
    assert list(transactions.parts()) == []
    transactions.validate()


def test_a_transaction_that_is_aborted_leaves_nothing() -> None:
    transactions = folded([prepare_record(part()), told("abort")])

    assert transactions.records() == []
    assert transactions.offset("w-0") == 0


@pytest.mark.parametrize(
    ("records", "wanted", "objection"),
    [
        ([], part(), ""),
        ([], part(end=0), ""),
        ([], part(start=1), "its rows are 1 to 5, and the output of w-0 ends at 0"),
        ([], part(start=0, end=-1), "its rows are 0 to -1"),
        ([], part(transaction=""), "its id has 0 bytes"),
        ([], part(transaction="x" * (LONGEST_ID + 1)), "at most|1 to 1024"),
        ([prepare_record(part())], part(), "it is prepared already"),
        ([prepare_record(part())], part("u"), "t of w-0 waits for a decision; a worker has one transaction at a time"),
        ([prepare_record(part())], part("u", "w-1"), ""),
        ([prepare_record(part()), told("commit")], part("u"), "committed and not in its output yet"),
        ([prepare_record(part()), told("commit")], part("u", "w-1"), ""),
        ([{"do": "offset", "worker": "w-0", "offset": 7}], part(start=7, end=9), ""),
    ],
)
def test_a_transaction_that_cannot_be_prepared_gets_a_vote_to_abort(
    records: list[LogRecord], wanted: OutputPart, objection: str
) -> None:
    found = folded(records).objection(wanted)

    assert bool(found) == bool(objection)
    assert any(one in found for one in objection.split("|"))


@pytest.mark.parametrize(
    "records",
    [[told("commit")], [prepare_record(part()), prepare_record(part())], [prepare_record(part()), told("append")]],
)
def test_records_that_cannot_follow_one_another_are_refused(records: list[LogRecord]) -> None:
    with pytest.raises(SinkError, match="cannot follow; the log is not whole"):
        folded(records)


@pytest.mark.parametrize("other", ["w", "w-", "w-01", "w-00", "w-1", "w0", "v-0"])
def test_a_prepared_transaction_is_listed_only_to_its_worker(other: str) -> None:
    """A worker decides every transaction that is listed to it: Wallaroo's workers abort those of others."""
    transactions = folded([prepare_record(part(worker="w-0"))])

    assert transactions.of_worker(other, PREPARED) is None
    assert transactions.of_worker("w-0", PREPARED) == part()


class Histories(RuleBasedStateMachine):
    """Any history of votes and decisions, with the server's start in between."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = ServerTransactions()
        self.count = 0
        self.shown = {"w-0": 0, "w-1": 0}

    def log(self, record: LogRecord) -> None:
        self.transactions.apply(record)

    @rule(worker=st.sampled_from(["w-0", "w-1"]), size=st.integers(0, 9), off=st.sampled_from([0, 0, 0, 1]))
    def prepare(self, worker: str, size: int, off: int) -> None:
        self.count += 1
        start = self.transactions.offset(worker) + off
        wanted = OutputPart(f"t{self.count}", worker, start, start + size, "")
        if not self.transactions.objection(wanted):
            self.log(prepare_record(wanted))

    @rule(pick=st.integers(0, 20), commit=st.booleans())
    def decide(self, pick: int, commit: bool) -> None:
        found = [self.transactions.of_worker(worker, PREPARED) for worker in ("w-0", "w-1")]
        names = [one.transaction for one in found if one is not None]
        if not names:
            return
        chosen = self.transactions.part(names[pick % len(names)])
        assert chosen is not None
        self.log(told("commit" if commit else "abort", chosen.transaction))

    @rule(worker=st.sampled_from(["w-0", "w-1"]))
    def append(self, worker: str) -> None:
        waiting = self.transactions.of_worker(worker, COMMITTED)
        if waiting is not None:
            self.log(told("append", waiting.transaction))
            self.shown[worker] += waiting.end - waiting.start

    @rule()
    def start_again(self) -> None:
        """From a shortened log."""
        before = self.transactions
        self.transactions = folded(before.records())
        assert self.transactions.records() == before.records()
        assert list(self.transactions.parts()) == list(before.parts())

    @invariant()
    def holds(self) -> None:
        self.transactions.validate()
        assert {worker: self.transactions.offset(worker) for worker in self.shown} == self.shown


Histories.TestCase.settings = steady
TestHistories = Histories.TestCase
