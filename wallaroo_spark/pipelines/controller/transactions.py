"""Transactions of deliveries: at their driver, and as staged statements at their targets.

Source: ``docs/pipelines/design.md#a-transactions-way``.
"""

from __future__ import annotations

from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller import states
from wallaroo_spark.pipelines.controller.context import CallContext
from wallaroo_spark.pipelines.controller.messages import events
from wallaroo_spark.pipelines.controller.messages.instructions import Written
from wallaroo_spark.pipelines.controller.messages.values import Delivery, PartitionKey, StatementId
from wallaroo_spark.pipelines.controller.partition_log import PartitionLog
from wallaroo_spark.pipelines.controller.stored.key_state import DeliveryTransaction, Statement


class Transactions:
    """The transactions whose deliveries belong to this key."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._entries = context.entries.transactions

    def get(self, delivery: Delivery) -> DeliveryTransaction | None:
        """The transaction of a delivery, None without one."""
        return self._entries.get(delivery) if self._context.head.transactions else None

    def begin(self, delivery: Delivery) -> None:
        """A member begins a transaction within an open delivery."""
        self._entries.put(delivery, DeliveryTransaction())
        self._context.head.transactions += 1

    def add(self, event: events.StatementAdded) -> None:
        """A statement is added to a pending transaction, and carried to its target."""
        transaction = self._edit(event.delivery)
        transaction.on(states.TxEvent.STATEMENT)
        statement = StatementId(event.delivery, len(transaction.statements))
        transaction.statements.append(Statement(states.StatementState.PENDING, event.target, event.reply_to))
        self._context.carry(event.target, events.ApplyStatement(statement, event.records))

    def ack(self, event: events.DeliveryAcked) -> bool:
        """The delivery of a pending transaction is acked. Returns whether the transaction is committed by that."""
        transaction = self._edit(event.delivery)
        transaction.acked, transaction.acked_by = True, event.reply_to
        transaction.output, transaction.stream_outputs = event.output, event.stream_outputs
        return self._commit_if_applied(event.delivery, transaction)

    def applied(self, answer: events.StatementApplied) -> bool:
        """A target has staged a statement. Returns whether the transaction is committed by that."""
        delivery, place = answer.statement
        transaction = self._find(delivery)
        if transaction is None:
            return False
        statement = transaction.statements[place]
        statement.on(states.StatementEvent.APPLIED)
        self._context.answer(statement.reply_to)
        return self._commit_if_applied(delivery, transaction)

    def refused(self, answer: events.StatementRefused) -> bool:
        """A target refuses a statement. Returns whether a transaction is rejected by that."""
        delivery, place = answer.statement
        transaction = self._find(delivery)
        if transaction is None or transaction.state is states.TxState.COMMITTED:
            # The end of the transaction is on its way to the target.
            return False
        statement = transaction.statements[place]
        if statement.state is states.StatementState.APPLIED:
            # The target has kept its mark of the statement until it hears of the transaction's end.
            self._context.carry(statement.target, events.AbortStatement(answer.statement))
        statement.on(states.StatementEvent.REFUSED)
        self._context.refuse(statement.reply_to, f"{answer.reason}; the transaction is rolled back")
        self._reject(delivery, transaction, states.TxEvent.REFUSED, f"statement {place}: {answer.reason}")
        return True

    def appended(self, answer: events.StatementAppended) -> None:
        """The records of a committed statement have offsets; with the last of them the member is answered."""
        delivery, place = answer.statement
        transaction = self._edit(delivery)
        statement = transaction.statements[place]
        statement.on(states.StatementEvent.APPENDED)
        statement.offsets, statement.reason, statement.partitions = answer.offsets, answer.reason, answer.partitions
        self._close_if_appended(delivery, transaction)

    def give_up(self, delivery: Delivery, reason: str) -> None:
        """The delivery has ended without an ack: its transaction, if it has one, is rejected."""
        transaction = self._find(delivery)
        if transaction is not None:
            self._reject(delivery, transaction, states.TxEvent.GIVEN_UP, reason)

    def _edit(self, delivery: Delivery) -> DeliveryTransaction:
        transaction = self._find(delivery)
        if transaction is None:
            raise PipelineError(f"{self._context.key}: {delivery} has no transaction; this is a defect, report it")
        return transaction

    def _commit_if_applied(self, delivery: Delivery, transaction: DeliveryTransaction) -> bool:
        statements = transaction.statements
        if not transaction.acked or any(one.state is not states.StatementState.APPLIED for one in statements):
            return False
        transaction.on(states.TxEvent.ALL_APPLIED)
        for place, statement in enumerate(statements):
            self._context.carry(statement.target, events.CommitStatement(StatementId(delivery, place)))
        self._close_if_appended(delivery, transaction)
        return True

    def _close_if_appended(self, delivery: Delivery, transaction: DeliveryTransaction) -> None:
        if all(one.state is states.StatementState.COMMITTED for one in transaction.statements):
            written = tuple(
                Written(one.target, one.offsets, one.reason, one.partitions) for one in transaction.statements
            )
            self._context.answer(transaction.acked_by, written)
            self._remove(delivery)

    def _reject(self, delivery: Delivery, transaction: DeliveryTransaction, event: states.TxEvent, reason: str) -> None:
        transaction.on(event)
        for place, statement in enumerate(transaction.statements):
            if statement.state is states.StatementState.REJECTED:
                continue
            if statement.state is states.StatementState.PENDING:
                self._context.refuse(statement.reply_to, f"the transaction is rolled back: {reason}")
            statement.on(states.StatementEvent.ABORTED)
            self._context.carry(statement.target, events.AbortStatement(StatementId(delivery, place)))
        if transaction.acked:
            self._context.refuse(transaction.acked_by, f"the transaction is rolled back: {reason}")
        self._remove(delivery)

    def _find(self, delivery: Delivery) -> DeliveryTransaction | None:
        """The transaction of a delivery to change, None without one."""
        return self._entries.edit(delivery) if self._context.head.transactions else None

    def _remove(self, delivery: Delivery) -> None:
        self._entries.remove(delivery)
        self._context.head.transactions -= 1


class StagedStatements:
    """The statements of other keys' transactions (and of this key's own) whose target is this key."""

    def __init__(self, context: CallContext, log: PartitionLog) -> None:
        self._context = context
        self._entries = context.entries.staged
        self._log = log

    def apply(self, source: PartitionKey, message: events.ApplyStatement) -> None:
        """Check a statement and stage its records, without offsets."""
        if problem := self._log.problem(message.records):
            self._context.carry(source, events.StatementRefused(message.statement, problem))
            return
        self._entries.put((source, message.statement), message.records)
        self._context.carry(source, events.StatementApplied(message.statement))

    def commit(self, source: PartitionKey, message: events.CommitStatement) -> None:
        """Append the records of a staged statement, in this batch or in a later one."""
        self._context.head.committing.append((source, message.statement))
        self.append_committed()

    def append_committed(self) -> None:
        """Append the records of committed statements, in their order, as long as this batch has room."""
        waiting = self._context.head.committing
        while waiting and self._log.has_room:
            self._append(*waiting.pop(0))

    def _append(self, source: PartitionKey, statement: StatementId) -> None:
        records = self._entries.get((source, statement))
        if records is None:
            raise PipelineError(
                f"{self._context.key}: {source} commits {statement}, which is not staged; this is a defect, report it"
            )
        self._entries.remove((source, statement))
        if records:
            self._log.count(records)
            written = self._log.append(records)
            answer = events.StatementAppended(statement, written.offsets, partitions=written.partitions)
        else:
            answer = events.StatementAppended(statement, (), self._deleted())
        self._context.carry(source, answer)

    def abort(self, source: PartitionKey, message: events.AbortStatement) -> None:
        """Forget a statement."""
        self._entries.remove((source, message.statement))

    def forget_records(self) -> None:
        """The stream is deleted, and the staged records with it. This reads all staged statements.

        Each keeps its mark, without records, until its transaction has ended: a commit that is on its way must neither
        write into a stream of the same name that is declared later, nor be taken for a defect.
        """
        for name in list(self._entries.all_keys()):
            if self._entries.get(name):
                source, statement = name
                self._entries.edit(name)
                self._entries.put(name, ())
                self._context.carry(source, events.StatementRefused(statement, self._deleted()))

    def _deleted(self) -> str:
        return f"the stream {self._context.key.stream} was deleted after the statement was applied"
