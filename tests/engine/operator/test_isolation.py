"""A turn that a defect ends: its rows and instances are found, and without them nothing else is lost."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engine.operator.shells import Shell
from tests.engine.operator.test_turn import UPPER, declared, in_spark, published
from tests.pipelines.controller.one_key import BEGINNING, ORDERS, REPLY, SHIPMENTS, record
from wallaroo_spark.engine.isolation import RememberedRuns, failing
from wallaroo_spark.engine.operator.turn import InputRow, take_turn
from wallaroo_spark.engine.set_aside import NOTHING, FailedRow, SetAside
from wallaroo_spark.pipelines.controller import instances, partition_log
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import OutputId, StageDelivery
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, Payload
from wallaroo_spark.streams.rows import Rank


class Defect(Exception):
    """A defect of the program."""


@pytest.fixture
def no_poison_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller has a defect: it cannot append a record whose id begins with ``poison``."""
    real = partition_log.event_digest

    def digest(record: CloudEvent) -> bytes:
        if record.id.startswith("poison"):
            raise Defect(record.id)
        return real(record)

    monkeypatch.setattr(partition_log, "event_digest", digest)


@pytest.fixture
def no_poison_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller has a defect: it cannot begin an instance of an event whose id begins with ``poison``."""
    real = instances.inputs

    def given(stage: StagePlan, instance: Any) -> Any:
        if instance.root is not None and instance.root.id.startswith("poison"):
            raise Defect(instance.root.id)
        return real(stage, instance)

    monkeypatch.setattr(instances, "inputs", given)


def rows_of(*events: e.Event | bytes) -> list[InputRow]:
    encoded = (one if isinstance(one, bytes) else encode(one) for one in events)
    return [InputRow(Rank.RECEIVED, "g0/1", 1, place, one) for place, one in enumerate(encoded)]


def look(shell: Shell, rows: Sequence[InputRow], aside: SetAside = NOTHING) -> list[FailedRow]:
    """What a turn of these rows fails at."""
    functions = RememberedRuns(shell.functions)

    def turn(some: Sequence[InputRow], without: SetAside) -> None:
        take_turn(ORDERS, shell.now + 10, some, shell.entries, shell.table, functions, aside=without)

    return failing(ORDERS, shell.now + 10, rows, shell.entries, aside, turn)


def go_on(shell: Shell, rows: Sequence[InputRow], found: Sequence[FailedRow]) -> list[i.Instruction]:
    """Take the turn without what was found."""
    shell.now += 10
    aside = pickle.loads(pickle.dumps(SetAside.of(*(FailedRow.from_json(one.to_json().encode()) for one in found))))
    shell.result = take_turn(ORDERS, shell.now, rows, shell.entries, shell.table, shell.functions, aside=aside)
    shell.entries.write(shell.result.changes)
    shell.table.records += shell.result.fresh
    return shell.result.instructions


def appended(shell: Shell) -> list[str]:
    return [one.id for one in shell.table.records]


def begun(*plans: PipelinePlan) -> Shell:
    shell = Shell()
    shell.turn(declared(*plans))
    return shell


def test_a_turn_that_succeeds_has_no_failing_row() -> None:
    assert look(begun(), rows_of(published(record("a")))) == []


@pytest.mark.usefixtures("no_poison_is_appended")
def test_the_failing_record_of_a_request_is_found_and_all_others_are_written() -> None:
    shell = begun()
    rows = rows_of(
        published(record("a")), published(record("b"), record("poison"), record("c")), published(record("d"))
    )

    found = look(shell, rows)

    (one,) = found
    assert (one.row, one.records, one.kind) == ((Rank.RECEIVED, "g0/1", 1, 1), (1,), "RecordsPublished")
    assert one.ids == ("tests poison",)
    assert one.error == "Defect: poison"
    assert "row 1 of file 1 of gateway g0, generation 1, events tests poison" in str(one)
    go_on(shell, rows, found)
    assert appended(shell) == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("no_poison_is_appended")
def test_several_failing_rows_are_found_at_once() -> None:
    shell = begun()
    letters = [record("poison-1"), record("a"), record("poison-2"), record("b"), record("poison-3")]
    rows = rows_of(published(*letters), published(record("poison-4")), published(record("c")))

    found = look(shell, rows)

    assert [one.ids for one in found] == [
        ("tests poison-1", "tests poison-2", "tests poison-3"),
        ("tests poison-4",),
    ]
    go_on(shell, rows, found)
    assert appended(shell) == ["a", "b", "c"]


def test_a_row_that_cannot_be_decoded_is_set_aside() -> None:
    shell = begun()
    rows = rows_of(published(record("a")), b"\xff\x00", published(record("b")))

    found = look(shell, rows)

    assert [(one.place, one.kind) for one in found] == [(1, "an event that cannot be decoded")]
    go_on(shell, rows, found)
    assert appended(shell) == ["a", "b"]


@pytest.mark.usefixtures("no_poison_is_appended")
def test_a_carried_output_is_answered_without_the_record_that_was_set_aside() -> None:
    shell = begun()
    output = OutputId(StageDelivery("shop/fulfil", 1, "ship", 1), 0)
    carried = e.CarriedIn(SHIPMENTS, 1, e.AppendOutput(output, (record("a"), record("poison"))))
    rows = [InputRow(Rank.CARRIED, str(SHIPMENTS), 1, 0, encode(carried))]

    found = look(shell, rows)
    go_on(shell, rows, found)

    assert appended(shell) == ["a"]
    (answer,) = [one for one in shell.result.instructions if isinstance(one, i.CarryOut)]
    assert answer.message == e.OutputAppended(output, (1,))


@pytest.mark.usefixtures("no_poison_is_begun")
def test_an_instance_that_cannot_begin_is_found_by_its_row_when_it_is_new() -> None:
    shell = begun(in_spark())
    rows = rows_of(published(record("a")), published(record("poison")), published(record("b")))

    found = look(shell, rows)
    go_on(shell, rows, found)

    assert [one.ids for one in found] == [("tests poison",)]
    assert appended(shell) == ["a", "b"]
    assert [one.instance for one in shell.of(i.InstanceEnded)] == [1, 2]


@pytest.mark.usefixtures("no_poison_is_begun")
@pytest.mark.parametrize("rows", [[], rows_of(published(record("z")))], ids=["a timer", "another event"])
def test_an_instance_of_a_committed_record_is_found_and_fails_when_it_is_set_aside(rows: list[InputRow]) -> None:
    shell = begun()
    shell.turn(published(record("a"), record("poison"), record("b")))
    declaration = InputRow(Rank.DECLARED, "", 2, 0, encode(declared(in_spark(), version=2)))

    found = look(shell, [declaration, *rows])

    assert [(one.pipeline, one.offset) for one in found] == [("shop/text", 2)]
    assert str(found[0]) == "instance 0/2 of pipeline shop/text, of shop/orders"
    go_on(shell, [declaration, *rows], found)
    ended = {one.instance: one for one in shell.of(i.InstanceEnded)}
    assert [ended[number].outcome for number in (1, 2, 3)] == [i.Outcome.DONE, i.Outcome.FAILED, i.Outcome.DONE]
    assert ended[2].reason == "it was set aside: Defect: poison"


def test_an_active_instance_that_fails_is_ended_with_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = begun(PipelinePlan("shop/text", (StagePlan("work", given_root=True),), start=BEGINNING))
    shell.turn(e.StageJoined(REPLY, "m", "shop/text", "work", 10), published(record("a"), record("poison")))
    poison = next(one for one in shell.of(i.DeliverInputs) if one.root == record("poison"))
    _fail_at(monkeypatch, lambda delivery: delivery.instance == 2)
    rows = rows_of(e.DeliveryAcked(REPLY, "m", poison.delivery, Payload(b"x")))

    found = look(shell, rows)
    go_on(shell, rows, found)

    assert [(one.pipeline, one.offset) for one in found] == [("shop/text", 2)]
    assert [one.instance for one in shell.of(i.InstanceEnded)] == [2]
    assert [one.delivery for one in shell.of(i.WithdrawDelivery)] == [poison.delivery]


def _fail_at(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[StageDelivery], bool]) -> None:
    """The controller has a defect: it cannot take the ack of these deliveries."""
    real = instances.ActiveInstances.finish

    def finish(self: Any, delivery: StageDelivery, *arguments: Any) -> None:
        if is_bad(delivery):
            raise Defect(str(delivery))
        real(self, delivery, *arguments)

    monkeypatch.setattr(instances.ActiveInstances, "finish", finish)


@pytest.mark.usefixtures("no_poison_is_appended")
def test_functions_are_called_once_while_rows_are_looked_for() -> None:
    shell = begun(in_spark(UPPER))
    rows = rows_of(*(published(record(f"a{number}")) for number in range(20)), published(record("poison")))

    assert len(look(shell, rows)) == 1
    assert sum(shell.functions.calls) == 20
