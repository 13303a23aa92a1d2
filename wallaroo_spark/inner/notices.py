"""Notices of the last commit to each worker, with the references of the scopes that the worker follows.

A worker names the scopes that it follows: the connector instances that it serves, and ``""`` where it serves sessions
of v3. It names each new one once, and is told all of its references then, in the next notice. Every later notice has
the changes since the notice before. After a notice that failed, the next one has all references of all scopes that the
worker follows.

Source: ``docs/decisions/workers-are-told-what-they-serve.md``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from wallaroo_spark.errors import TransportError, one_line
from wallaroo_spark.inner.calls import COMMITTED, REWIND, FollowedScopes, Notice
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.references import (
    Changes,
    PlannedRange,
    Reference,
    References,
    StreamKey,
    all_changes,
    endings_of,
    of_scope,
)
from wallaroo_spark.steps import Step, passed

log = one_line("wallaroo_spark.receiver")

RETRY_SECONDS = 0.5
"""Pause before a call that was not answered is repeated. A choice."""
QUESTION_SECONDS = 10.0
"""Longest wait of one question for the scopes that a worker follows. A choice: it bounds the calls of an idle fleet."""
_SPARE_SCOPES = 64
"""Scopes that a worker may have left, beyond as many as it follows, before it is asked for all. A choice."""


class GivenUp(Protocol):
    """The record of the ranges that doors have given up; :class:`~wallaroo_spark.sidecar.given_up.GivenUpRanges`."""

    def of(self, scopes: Collection[str]) -> Sequence[PlannedRange]:
        """The ranges of streams of these instances of doors."""

    def record(self, ranges: Collection[PlannedRange]) -> None:
        """Remember ranges; durable when this returns."""


class NewsOfCommit(NamedTuple):
    """What has changed from one commit to a later one of the same query."""

    changes: Changes
    """The changed references; None for a stream that is forgotten."""
    ended: Sequence[StreamKey]
    """The streams of which the driver has recorded the end, as a worker has reported it; none of a door's."""


@dataclass(frozen=True)
class LastCommit:
    """The last commit of the query that runs: its epoch, its batch, and the committed reference of each stream."""

    epoch: int
    """The number of the query's start; it increases with each start."""
    batch: int
    """The committed batch; -1 before the first commit."""
    references: References
    """The committed reference of each stream."""
    _news: dict[int, NewsOfCommit | None] = field(default_factory=dict, compare=False, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)
    """Guards ``_news``."""

    def since(self, known: LastCommit | None) -> NewsOfCommit | None:
        """The news for a worker that knows the commit ``known``; None when it must be told all references.

        Most workers know the same commit, so the news is made once for each.
        """
        if known is None or known.epoch != self.epoch:
            return None
        with self._making:
            if known.batch not in self._news:
                self._news[known.batch] = self._compare(known)
            return self._news[known.batch]

    def _compare(self, known: LastCommit) -> NewsOfCommit | None:
        # The streams that were forgotten since an unknown version are not known, so the worker cannot be told of them.
        changes = all_changes(known.references, self.references)
        if changes is None:
            return None
        endings, before = endings_of(self.references), endings_of(known.references)
        if endings is None:
            return NewsOfCommit(changes, ())
        times = all_changes({} if before is None else before.times, endings.times) or {}
        ended = [
            StreamKey(scope, int(stream))
            for scope, streams in times.items()
            for stream, time in streams.items()
            if time is not None and not reserved(scope)
        ]
        return NewsOfCommit(changes, ended)

    @cached_property
    def leaving(self) -> tuple[str, Sequence[StreamKey]]:
        """The token of the streams that are forgotten next, and these streams."""
        endings = endings_of(self.references)
        if endings is None or endings.leaving is None:
            return "", ()
        return endings.leaving.token, endings.leaving_streams()


class Followers:
    """The workers that follow each scope. It divides the changes of a commit once for all workers.

    The lock of its senders guards it.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[NoticeSender, ...]] = {}
        self._commit: LastCommit | None = None
        self._parts: dict[int, dict[NoticeSender, dict[str, Mapping[str, Reference | None]]]] = {}

    def add(self, scopes: Iterable[str], sender: NoticeSender) -> None:
        """A worker follows scopes, from the last commit on."""
        for scope in scopes:
            senders = self._of.get(scope, ())
            if sender not in senders:
                self._of[scope] = (*senders, sender)

    def remove(self, scopes: Iterable[str], sender: NoticeSender) -> None:
        """A worker does not follow these scopes any more."""
        for scope in scopes:
            left = tuple(one for one in self._of.get(scope, ()) if one is not sender)
            if left:
                self._of[scope] = left
            else:
                self._of.pop(scope, None)

    def part(self, sender: NoticeSender, commit: LastCommit, known: int, changes: Changes) -> Changes:
        """The changes since the batch ``known`` in the scopes that a worker has followed since before ``commit``."""
        if self._commit is not commit:
            self._commit, self._parts = commit, {}
        parts = self._parts.get(known)
        if parts is None:
            parts = self._parts[known] = {}
            for scope, streams in changes.items():
                for follower in self._of.get(scope, ()):
                    parts.setdefault(follower, {})[scope] = streams
        return parts.get(sender, {})


class NoticeSender:
    """Asks one worker for the scopes that it follows, and sends it the last commit, each in a thread of its own.

    ``changed`` guards the state and ``followers``, and is never held during a call to the worker.
    """

    def __init__(
        self,
        slot: int,
        client: WorkerClient,
        changed: threading.Condition,
        last_commit: Callable[[], LastCommit | None],
        followers: Followers,
        given_up: Callable[[], GivenUp | None] = lambda: None,
    ) -> None:
        self.slot = slot
        self.client = client
        self.sent: LastCommit | None = None
        """The commit that the worker knows; None if that is unknown."""
        self.failure: Exception | None = None
        """The error of the last attempt; None if it succeeded."""
        self.asked = False
        """Whether the worker has named the scopes that it follows."""
        self._changed = changed
        self._last_commit = last_commit
        self._followers = followers
        self._given_up = given_up
        self._stopped = False
        self._cursor = 0
        self._count = 0
        self._scopes: dict[str, None] = {}
        self._new: dict[str, int] = {}
        """The scopes of which the worker must be told all references, with the number up to which it named them."""

    def stop(self) -> None:
        """Send no more notices. A call that is under way ends by its own time limit."""
        with self._changed:
            self._stopped = True
            self._followers.remove(self._scopes, self)
            self._changed.notify_all()

    def run(self) -> None:
        """Send each newer commit, and the references of scopes that the worker begins to follow, until :meth:`stop`."""
        asking = threading.Thread(target=self._keep_asking, name=f"wallaroo-ask-{self.slot}", daemon=True)
        asking.start()
        while self._await_news():
            self.send()
            self._pause_after(self.failure)
        asking.join()
        self.client.close()

    def _keep_asking(self) -> None:
        while self._await_first_answer():
            failure = None
            try:
                self.answered(self.client.followed(*self.question(QUESTION_SECONDS)))
            except Exception as error:
                failure = error
                self._log("the question for the instances of slot %d is asked again: %s", error)
            self._pause_after(failure)

    def _pause_after(self, failure: Exception | None) -> None:
        if failure is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, RETRY_SECONDS)

    def question(self, wait: float) -> tuple[int, float, bool]:
        """The next question: the number up to which the worker has named scopes, the seconds to wait for others, and
        whether it is to name all scopes, because it has left many of those that it has named.
        """
        with self._changed:
            return self._cursor, wait, len(self._scopes) > 2 * self._count + _SPARE_SCOPES

    def answered(self, answer: FollowedScopes) -> None:
        """The worker has named scopes."""
        record = self._given_up()
        if answer.give_up and record is not None:
            record.record(answer.give_up)
        with self._changed:
            if self._stopped:
                return
            if answer.kept is not None:
                named = {*answer.kept, *answer.new}
                left = [scope for scope in self._scopes if scope not in named]
                self._followers.remove(left, self)
                for scope in left:
                    del self._scopes[scope]
                    self._new.pop(scope, None)
            # From here on the changes of later commits have these scopes; the next notice has their references.
            self._followers.add(answer.new, self)
            self._scopes.update(dict.fromkeys(answer.new))
            self._new.update(dict.fromkeys(answer.new, answer.cursor))
            self._cursor, self._count, self.asked = answer.cursor, answer.count, True
            self._changed.notify_all()

    def send(self) -> None:
        """Send the last commit once, unless the worker knows it and all references that it needs."""
        failure, commit = None, self._last_commit()
        if commit is None:
            return
        try:
            if not self.asked:
                self.answered(self.client.followed(*self.question(0.0)))
            commit, notice = self._next()
            if notice is not None:
                self.client.tell(notice)
                self._told(notice)
        except Exception as error:
            failure = error
            self._log("the commit notice to slot %d is sent again: %s", error)
        with self._changed:
            self.failure, self.sent = failure, None if failure else commit
            self._changed.notify_all()

    def _next(self) -> tuple[LastCommit, Notice | None]:
        """The last commit, and the notice of it; None when there is nothing to tell."""
        with self._changed:
            commit, known, cursor = self._last_commit(), self.sent, self._cursor
            assert commit is not None
            if commit is known and not self._new:
                return commit, None
            news = commit.since(known)
            if news is None or known is None:
                changes, scopes = None, [*self._scopes]
            else:
                changes, scopes = self._followers.part(self, commit, known.batch, news.changes), [*self._new]
        whole = {scope: of_scope(commit.references, scope) for scope in scopes}
        record = self._given_up()
        doors = {scope for scope in scopes if reserved(scope)}
        given_up = record.of(doors) if record is not None and doors else ()
        if news is None or changes is None:
            notice = Notice(REWIND, commit.epoch, commit.batch, {}, whole, cursor, commit.leaving, (), given_up)
            return commit, notice
        if whole:
            changes = {scope: streams for scope, streams in changes.items() if scope not in whole}
        end = (commit.leaving, news.ended, given_up)
        notice = Notice(COMMITTED, commit.epoch, commit.batch, changes, whole, cursor, *end)
        return commit, notice

    def _told(self, notice: Notice) -> None:
        """The worker has taken a notice."""
        if notice.action == COMMITTED:
            passed(Step.REFERENCES_SENT)
        with self._changed:
            self._new = {scope: number for scope, number in self._new.items() if number > notice.cursor}

    def _await_news(self) -> bool:
        """Wait until there is something that the worker does not know; return False after :meth:`stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._has_news())
            return not self._stopped

    def _has_news(self) -> bool:
        commit = self._last_commit()
        return commit is not self.sent or (commit is not None and bool(self._new))

    def _await_first_answer(self) -> bool:
        """Wait until :meth:`send` has asked for the first time; return False after :meth:`stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self.asked)
            return not self._stopped

    def _log(self, text: str, error: Exception) -> None:
        # An error of this program must not end a thread, because the worker would then get no more notices.
        ours = None if isinstance(error, TransportError) else error
        log.log(logging.WARNING if ours else logging.INFO, text, self.slot, error, exc_info=ours)
