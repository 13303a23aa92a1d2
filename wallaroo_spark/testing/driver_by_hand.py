"""A driver of one worker: the receiver's own sender of notices, and the commits that a test makes."""

from __future__ import annotations

import threading

from wallaroo_spark.errors import TransportError
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.inner.notices import Followers, GivenUp, LastCommit, NoticeSender
from wallaroo_spark.references import Changes, References, merge, plain, without_forgotten

ANSWER_SECONDS = 30.0
"""The longest wait for the worker to take a notice, in seconds. A choice, generous for loaded machines."""


class DriverByHand:
    """Tells one worker the position of a query, and answers its questions; ``client`` is closed at its end.

    ``given_up`` is the record of what doors have given up; without it they give nothing up. Its methods raise
    :class:`TransportError` when the worker does not answer.
    """

    def __init__(self, client: WorkerClient, given_up: GivenUp | None = None) -> None:
        self._changed = threading.Condition()
        self._commit: LastCommit | None = None
        self._sender = NoticeSender(0, client, self._changed, lambda: self._commit, Followers(), lambda: given_up)
        threading.Thread(target=self._sender.run, name="driver-by-hand", daemon=True).start()

    def rewind(self, epoch: int, batch: int, references: References) -> None:
        """A query continues from exactly these references; the worker knows it afterwards."""
        self._tell(LastCommit(epoch, batch, merge(references, {})), anew=True)

    def committed(self, epoch: int, batch: int, changes: Changes) -> None:
        """Spark has committed a batch; the worker knows it afterwards. None in ``changes`` is a forgotten stream."""
        known = plain(self._commit.references) if self._commit is not None else {}
        self._tell(LastCommit(epoch, batch, without_forgotten(merge(known, changes))), anew=False)

    def _tell(self, commit: LastCommit, *, anew: bool) -> None:
        sender = self._sender
        with self._changed:
            self._commit = commit
            sender.failure = None
            sender.sent = None if anew else sender.sent
            self._changed.notify_all()
            self._changed.wait_for(lambda: sender.sent is commit or sender.failure is not None, ANSWER_SECONDS)
            failure, told = sender.failure, sender.sent is commit
        if failure is not None:
            raise failure
        if not told:
            raise TransportError(f"the worker takes no notice within {ANSWER_SECONDS:g} s", code="test-timed-out")

    def stop(self) -> None:
        """Send no more notices. Its threads end with the call that is under way."""
        self._sender.stop()
