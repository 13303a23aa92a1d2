"""The query's place, as the driver tells it: what Spark has committed, and that the query went back.

Source: ``docs/architecture.md#rules``, rules 1 and 2; ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

from collections.abc import Iterable

from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.held_stream import Ledger
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.resend import Recall
from wallaroo_spark.worker.machine.sessions import Sessions


class Progress:
    """Follows the newest epoch and batch that the driver has named; commit notices that are older are counted and
    ignored.
    """

    def __init__(self, sessions: Sessions, gates: Gates, recall: Recall) -> None:
        self.epoch = 0
        self.batch = -1
        self._sessions = sessions
        self._gates = gates
        self._recall = recall

    def committed(self, event: e.Committed) -> None:
        """Spark has committed a batch."""
        if event.epoch != self.epoch or event.batch <= self.batch:
            self._sessions.counts["stale-commits"] += 1
            return
        self.batch = event.batch
        buffer = self._sessions.buffer
        before = buffer.held
        moved = buffer.commit(event.references)
        self._sessions.flow.committed(event.now, event.batch, before - buffer.held, buffer.used)
        self._moved(moved)

    def rewound(self, event: e.Rewound) -> bool:
        """A query goes on from exactly these references; False when the notice is stale."""
        if event.epoch < self.epoch or (event.epoch == self.epoch and event.batch < self.batch):
            self._sessions.counts["stale-commits"] += 1
            return False
        buffer = self._sessions.buffer
        before = {ledger.key: ledger.committed for ledger in buffer.ledgers.values()}
        back = buffer.rewind(event.references)
        self.epoch, self.batch = event.epoch, event.batch
        self._sessions.flow.restart(event.batch)
        self._recall.send_again(back, "the query went back")
        behind = set(back)
        for ledger in [buffer.ledgers[key] for key in back if key in buffer.ledgers]:
            self._sessions.tidy(ledger)
        ledgers = [ledger for ledger in buffer.ledgers.values() if ledger.key not in behind]
        self._moved([ledger for ledger in ledgers if ledger.committed != before[ledger.key]])
        return True

    def _moved(self, ledgers: Iterable[Ledger]) -> None:
        """Acknowledge to the senders, forget streams that nobody needs, and let more messages in."""
        sessions = self._sessions
        keys: dict[int | None, list[StreamKey]] = {}
        for ledger in ledgers:
            keys.setdefault(ledger.owner, []).append(ledger.key)
            sessions.tidy(ledger)
        for client in sessions.streaming.values():
            self._gates.tell(client, keys.get(client.session, ()))
