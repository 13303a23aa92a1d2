"""Transactions: all statements of a delivery or none, with the states of the seed."""

from __future__ import annotations

import pytest

from tests.pipelines.controller.one_key import BEGINNING, ORDERS, SHIPMENTS, Key, record, reply
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import Delivery, GroupDelivery, PartitionKey, StatementId
from wallaroo_spark.pipelines.schema.cloud_event import Payload

BEGIN, ADD, ACK = reply(10), reply(11), reply(12)
INVOICES = PartitionKey("shop/invoices", 0)


def delivered() -> tuple[Key, Delivery]:
    """A key, and its delivery to the member anna of a group."""
    key = Key()
    key.publish(record(1), record(2))
    key.join("anna")
    return key, key.one(i.DeliverRecords).delivery


def pending() -> tuple[Key, Delivery]:
    """The same within a transaction."""
    key, delivery = delivered()
    key.do(e.TransactionBegun(BEGIN, "anna", delivery))
    assert key.said == [i.AnswerRequest(BEGIN)]
    return key, delivery


def add(key: Key, delivery: Delivery, number: int = 1, target: PartitionKey = SHIPMENTS, request: int = 11) -> None:
    key.do(e.StatementAdded(reply(request), "anna", delivery, target, (record(f"s{number}"),)))


def acked(key: Key, delivery: Delivery) -> None:
    key.do(e.DeliveryAcked(ACK, "anna", delivery))


def said(key: Key) -> list[e.Carried]:
    return [one.message for one in key.of(i.CarryOut)]


def last(key: Key) -> e.Carried:
    (found,) = said(key)
    return found


def test_all_statements_are_written_with_the_ack_and_their_offsets_are_in_the_answer() -> None:
    key, delivery = pending()
    target = Key(key=SHIPMENTS)
    add(key, delivery)
    statement = StatementId(delivery, 0)
    assert said(key) == [e.ApplyStatement(statement, (record("s1"),))]

    target.carried(last(key), ORDERS)
    assert not target.log
    assert said(target) == [e.StatementApplied(statement)]
    key.carried(last(target))
    assert key.said == [i.AnswerRequest(ADD)]

    acked(key, delivery)
    assert said(key) == [e.CommitStatement(statement)]
    assert not key.of(i.AnswerRequest)
    assert key.one(i.DeliverRecords).first == 2

    target.carried(last(key), ORDERS)
    assert target.log == [record("s1")]
    key.carried(last(target))
    assert key.said == [i.AnswerRequest(ACK, (i.Written(SHIPMENTS, (1,)),))]
    assert not [name for name in (*key.stored, *target.stored) if name[:1] in (b"t", b"s")]


def test_an_ack_before_all_statements_are_applied_waits_for_them() -> None:
    key, delivery = pending()
    add(key, delivery)
    add(key, delivery, 2, INVOICES)
    acked(key, delivery)
    assert not key.said
    key.leave("anna")
    assert not key.of(i.DeliverRecords)

    key.carried(e.StatementApplied(StatementId(delivery, 0)))
    assert not said(key)
    key.carried(e.StatementApplied(StatementId(delivery, 1)), INVOICES)
    assert said(key) == [e.CommitStatement(StatementId(delivery, place)) for place in (0, 1)]
    assert key.head.groups["billing"].cursor == 1

    key.carried(e.StatementAppended(StatementId(delivery, 1), (4,)), INVOICES)
    assert not key.said
    key.carried(e.StatementAppended(StatementId(delivery, 0), (9,)))
    assert key.one(i.AnswerRequest).written == (i.Written(SHIPMENTS, (9,)), i.Written(INVOICES, (4,)))


def test_a_transaction_without_statements_is_an_ack() -> None:
    key, delivery = pending()
    acked(key, delivery)

    assert key.said[0] == i.AnswerRequest(ACK)
    assert key.head.groups["billing"].cursor == 1


@pytest.mark.parametrize("early_ack", [False, True])
def test_a_refused_statement_rejects_everything_and_the_batch_is_delivered_again(early_ack: bool) -> None:
    key, delivery = pending()
    add(key, delivery, 1, SHIPMENTS, 21)
    add(key, delivery, 2, INVOICES, 22)
    if early_ack:
        acked(key, delivery)
    gone = Key(key=INVOICES, declared=False)
    gone.carried(e.ApplyStatement(StatementId(delivery, 1), (record("s2"),)), ORDERS)
    key.carried(last(gone), INVOICES)

    refused = {one.reply_to for one in key.of(i.RefuseRequest)}
    assert refused == {reply(21), reply(22), *([ACK] if early_ack else [])}
    assert said(key) == [e.AbortStatement(StatementId(delivery, 0))]
    again = key.one(i.DeliverRecords)
    assert (again.first, again.delivery) != (2, delivery)

    key.carried(e.StatementApplied(StatementId(delivery, 0)))
    assert not key.said
    acked(key, delivery)
    assert key.one(i.WarnClient)


def test_a_nack_and_a_disconnect_reject_the_transaction() -> None:
    for end in (lambda key, delivery: key.nack("anna", delivery), lambda key, _: key.leave("anna")):
        key, delivery = pending()
        target = Key(key=SHIPMENTS)
        add(key, delivery)
        target.carried(last(key), ORDERS)
        key.carried(last(target))
        end(key, delivery)
        assert said(key) == [e.AbortStatement(StatementId(delivery, 0))]
        target.carried(last(key), ORDERS)
        assert not target.said
        assert not target.log
        assert not [name for name in (*key.stored, *target.stored) if name[:1] in (b"t", b"s")]


def test_a_statement_that_is_not_valid_closes_the_delivery() -> None:
    key, delivery = pending()
    add(key, delivery)
    key.do(e.StatementAdded(reply(31), "anna", delivery, SHIPMENTS, ()))

    assert key.of(i.RefuseRequest)[0] == i.RefuseRequest(
        reply(31), "the batch is empty; publish at least one record; the transaction is rolled back"
    )
    assert said(key) == [e.AbortStatement(StatementId(delivery, 0))]
    assert key.one(i.DeliverRecords).first == 1


def test_statements_that_come_too_late_or_without_a_transaction_are_dropped_with_a_warning() -> None:
    key, delivery = delivered()
    add(key, delivery)
    assert "begin one first" in key.one(i.WarnClient).text
    key.do(e.TransactionBegun(BEGIN, "anna", delivery))
    key.do(e.TransactionBegun(BEGIN, "anna", delivery))
    assert "has a transaction already" in key.one(i.WarnClient).text
    add(key, delivery)
    acked(key, delivery)
    add(key, delivery, 2)
    assert key.one(i.WarnClient)
    assert not said(key)
    key.do(e.TransactionBegun(BEGIN, "berta", delivery))
    assert key.one(i.WarnClient)


def test_a_stage_may_have_a_transaction_too() -> None:
    plan = PipelinePlan("shop/fulfil", (StagePlan("charge", output_required=True), StagePlan("ship", ("charge",))))
    key = Key(plan._replace(start=BEGINNING))
    key.serve("anna", "charge")
    key.serve("berta", "ship")
    key.publish(record(1))
    delivery = key.one(i.DeliverInputs).delivery
    key.do(e.TransactionBegun(BEGIN, "anna", delivery))
    add(key, delivery)
    key.do(e.DeliveryAcked(ACK, "anna", delivery, Payload(b"paid")))
    assert not key.of(i.StoreOutput)
    key.carried(e.StatementApplied(StatementId(delivery, 0)))

    assert key.one(i.StoreOutput).output == Payload(b"paid")
    assert key.one(i.DeliverInputs).delivery.stage == "ship"


def test_an_ack_without_its_required_output_rejects_the_transaction() -> None:
    plan = PipelinePlan("shop/fulfil", (StagePlan("charge", output_required=True),), start=BEGINNING)
    key = Key(plan)
    key.serve("anna", "charge")
    key.publish(record(1))
    delivery = key.one(i.DeliverInputs).delivery
    key.do(e.TransactionBegun(BEGIN, "anna", delivery))
    add(key, delivery)
    acked(key, delivery)

    assert said(key) == [e.AbortStatement(StatementId(delivery, 0))]
    assert key.one(i.DeliverInputs).delivery != delivery


def test_a_cancelled_instance_rejects_the_transactions_of_its_stages() -> None:
    for early_ack in (False, True):
        key = Key(PipelinePlan("shop/fulfil", (StagePlan("charge"),), start=BEGINNING))
        key.serve("anna", "charge")
        key.publish(record(1))
        delivery = key.one(i.DeliverInputs).delivery
        key.do(e.TransactionBegun(BEGIN, "anna", delivery))
        add(key, delivery)
        if early_ack:
            acked(key, delivery)
        key.do(e.InstanceCancelled(reply(40), "shop/fulfil", 1))
        assert said(key) == [e.AbortStatement(StatementId(delivery, 0))]
        assert (ACK in {one.reply_to for one in key.of(i.RefuseRequest)}) == early_ack


def test_a_deleted_stream_rejects_the_transactions_of_its_groups() -> None:
    for early_ack in (False, True):
        key, delivery = pending()
        add(key, delivery)
        if early_ack:
            acked(key, delivery)
        key.do(e.PartitionDeclared(9, None))
        assert said(key) == [e.AbortStatement(StatementId(delivery, 0))]


def test_a_carried_message_counts_once_and_a_missing_one_is_an_error() -> None:
    target = Key(key=SHIPMENTS)
    message = e.ApplyStatement(StatementId(pending()[1], 0), (record("s1"),))
    target.carried(message, ORDERS, 1)
    assert said(target)
    target.carried(message, ORDERS, 1)
    assert not target.said
    with pytest.raises(PipelineError, match="message 3 of shop/orders/0 arrives, and 2 is the next"):
        target.carried(message, ORDERS, 3)


def test_a_commit_of_an_unknown_statement_is_a_defect() -> None:
    target = Key(key=SHIPMENTS)
    with pytest.raises(PipelineError, match="is not staged"):
        target.carried(e.CommitStatement(StatementId(pending()[1], 0)), ORDERS)


def applied() -> tuple[Key, Key, Delivery]:
    """A delivery whose transaction has a statement that is applied at a target, and the target."""
    key, delivery = pending()
    target = Key(key=SHIPMENTS)
    add(key, delivery)
    target.carried(last(key), ORDERS)
    key.carried(last(target))
    return key, target, delivery


def test_a_target_that_is_deleted_before_the_ack_rejects_the_transaction() -> None:
    key, target, delivery = applied()
    add(key, delivery, 2, INVOICES, request=13)
    target.do(e.PartitionDeclared(2, None))
    refused = last(target)
    assert isinstance(refused, e.StatementRefused)
    assert refused.reason == "the stream shop/shipments was deleted after the statement was applied"

    key.carried(refused)
    withdrawn = key.one(i.WithdrawDelivery)
    assert withdrawn.member == "anna"
    assert withdrawn.delivery == delivery
    assert refused.reason in withdrawn.reason
    assert key.one(i.DeliverRecords).first == 1
    carried = {one.target: one.message for one in key.of(i.CarryOut)}
    assert carried[INVOICES] == e.AbortStatement(StatementId(delivery, 1))
    target.carried(carried[SHIPMENTS], ORDERS)
    assert not target.log
    assert not [name for name in (*key.stored, *target.stored) if name[:1] in (b"t", b"s")]

    acked(key, delivery)
    assert "is not open" in key.one(i.WarnClient).text


def test_an_ack_that_waits_is_refused_when_a_target_is_deleted() -> None:
    key, target, delivery = applied()
    add(key, delivery, 2, INVOICES, request=13)
    acked(key, delivery)
    target.do(e.PartitionDeclared(2, None))
    key.carried(last(target))
    refused = next(one for one in key.of(i.RefuseRequest) if one.reply_to == ACK)
    assert "was deleted" in refused.reason
    assert not key.of(i.WithdrawDelivery)
    assert key.one(i.DeliverRecords).first == 1


@pytest.mark.parametrize("declared_anew", [False, True])
def test_a_commit_that_meets_a_deleted_target_says_that_its_records_are_deleted(declared_anew: bool) -> None:
    key, target, delivery = applied()
    acked(key, delivery)
    commit = last(key)
    target.version = 1
    target.do(e.PartitionDeclared(2, None))
    refused = last(target)
    if declared_anew:
        target.do(e.PartitionDeclared(3, PartitionPlan()))
    key.carried(refused)
    assert not key.said

    target.carried(commit, ORDERS)
    assert not target.log
    key.carried(last(target))
    reason = "the stream shop/shipments was deleted after the statement was applied"
    assert key.said == [i.AnswerRequest(ACK, (i.Written(SHIPMENTS, (), reason),))]
    assert not [name for name in (*key.stored, *target.stored) if name[:1] in (b"t", b"s")]


def test_a_target_that_is_deleted_after_a_roll_back_forgets_the_statement() -> None:
    key, target, delivery = applied()
    key.nack("anna", delivery)
    abort = last(key)
    target.do(e.PartitionDeclared(2, None))
    key.carried(last(target))
    assert not key.of(i.WithdrawDelivery)
    target.carried(abort, ORDERS)
    assert not [name for name in (*key.stored, *target.stored) if name[:1] in (b"t", b"s")]


def staged(target: Key, transactions: int) -> list[e.Carried]:
    """The commits of transactions, each with a statement of 1,000 bytes and more that the target has staged."""
    found: list[e.Carried] = []
    for number in range(transactions):
        statement = StatementId(GroupDelivery("billing", number), 0)
        target.carried(e.ApplyStatement(statement, (record(number)._replace(data=b"x" * 1_000),)), ORDERS)
        found.append(e.CommitStatement(statement))
    return found


def commit_together(target: Key, commits: list[e.Carried]) -> None:
    following = target.head.received[ORDERS] + 1
    target.do(*(e.CarriedIn(ORDERS, following + place, one) for place, one in enumerate(commits)))


def test_transactions_that_commit_together_are_appended_by_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wallaroo_spark.pipelines.controller.partition_log.DUE_BYTES", 2_000)
    target = Key(key=SHIPMENTS)
    commits = staged(target, 9)
    commit_together(target, commits[:8])
    answered = said(target)
    for batches in range(1, 4):
        assert len(target.log) == 2 * batches
        assert target.head.armed == target.now + 1
        target.now += 1
        # One that comes later does not pass those that wait.
        target.do() if batches > 1 else commit_together(target, commits[8:])
        answered += said(target)
    target.now += 1
    target.do()

    answered += said(target)
    assert [one.id for one in target.log] == [str(number) for number in range(9)]
    expected = [StatementId(GroupDelivery("billing", number), 0) for number in range(9)]
    assert answered == [e.StatementAppended(name, (place,)) for place, name in enumerate(expected, start=1)]
    assert target.head.armed is None
    assert not [name for name in target.stored if name[:1] == b"s"]


def test_commits_that_wait_while_their_target_is_deleted_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wallaroo_spark.pipelines.controller.partition_log.DUE_BYTES", 1_000)
    target = Key(key=SHIPMENTS)
    commit_together(target, staged(target, 3))
    target.now += 1
    target.do(e.PartitionDeclared(2, None), e.PartitionDeclared(3, PartitionPlan()))

    answers = [one for one in said(target) if isinstance(one, e.StatementAppended)]
    assert [bool(one.offsets) for one in answers] == [False, False]
    assert all("was deleted after the statement was applied" in one.reason for one in answers)
    assert len(target.log) == 1
    assert not [name for name in target.stored if name[:1] == b"s"]
