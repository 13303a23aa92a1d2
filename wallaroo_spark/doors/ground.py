"""The common ground of a worker's doors: the sessions of their clients, and the rows that nobody can send again.

It is there in every worker, also where all doors are off, because a range of a door's stream may be planned while the
door was on. Pure but for the file of ``door.tokens``: the clock is an argument, and the worker is
:class:`~.client.Host`. Source:
``docs/architecture.md#doors``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from wallaroo_spark.doors.client import Accepted, DoorClient, Greeting, Host
from wallaroo_spark.doors.senders import Senders
from wallaroo_spark.doors.unanswered import UnansweredRanges
from wallaroo_spark.options import Options
from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.references import PlannedRange, StreamKey

IDLE_SECONDS = 30.0
"""A session for which nothing was asked and nothing waits for so long ends, and another worker may get its instance.

A choice: longer than the pause of a client that sends one request after another.
"""

MOST_REMEMBERED = 20_000
"""Instances whose accepted references are remembered. A choice above the sessions that a worker has (maxSessions)."""


class Ground:
    """The sessions of all doors' clients of one worker; it begins at ``now``, in monotonic seconds."""

    def __init__(
        self, host: Host, options: Options, cookie: str, slot: int, log: Callable[[str], None], now: float
    ) -> None:
        self.slot = slot
        self.host = host
        self.senders = Senders(cookie, options.door_tokens)
        self.clients: dict[str, DoorClient] = {}
        self._own = f"/worker-{slot}"
        self._accepted: OrderedDict[str, dict[int, Accepted]] = OrderedDict()
        """What this worker has accepted, by instance, as long as rows of ended sessions may be held."""
        self.fences: dict[str, Callable[[int], int]] = {}
        """For a door's prefix: the reference behind which a stream goes on whose range was given up, from its end.

        The commit log then tells also the next worker that the range was given up.
        """
        self._log = log
        self._greeting = Greeting(options.version, cookie.encode(), options.max_frame_bytes)
        self._unanswered = UnansweredRanges(options.door_replay_timeout, options.replay_timeout)
        self._giving_up: set[PlannedRange] = set()
        self._now = now

    def own_instance(self, door: str) -> str:
        """The instance of a door's clients without a name. Each worker has its own, so none is sent to another."""
        return f"{door}{self._own}"

    def client(self, instance: str) -> DoorClient:
        """The session of an instance, ``DOOR/NAME``; a new one begins when there is none."""
        found = self.clients.get(instance)
        if found is None:
            door = reserved(instance).removesuffix("/")
            accepted = self._accepted.setdefault(instance, {})
            self._accepted.move_to_end(instance)
            found = self.clients[instance] = DoorClient(self.host, self._greeting, instance, door, accepted, self._gone)
            found.began_at = self._now
        found.used_at = self._now
        return found

    def _gone(self, client: DoorClient) -> None:
        if self.clients.get(client.instance) is client:
            del self.clients[client.instance]
        if not client.instance.endswith(self._own):
            # Rows of this session and of those before it may be held. The next one is told what is committed.
            left = {
                number: one
                for number, one in self._accepted.pop(client.instance, {}).items()
                if client.waits_in(number) or self.host.holds(StreamKey(client.instance, number))
            }
            if left:
                self._accepted[client.instance] = left
        while len(self._accepted) > MOST_REMEMBERED:
            self._accepted.popitem(last=False)

    def given_up(self, key: StreamKey) -> tuple[int, int]:
        """The references of a stream that were given up: above the first, up to the second."""
        found = self.host.given_up(key)
        if found is None:
            return 0, 0
        _, start, end = found
        assert isinstance(start, int)
        assert isinstance(end, int)
        return start, end

    def requests(self, prefix: str) -> dict[str, int]:
        """The requests that wait for their commit, by the instance of their client, of one door's clients."""
        return {name: one.requests for name, one in self.clients.items() if name.startswith(prefix) and one.waits}

    def wanted(self, ranges: Iterable[PlannedRange]) -> None:
        """These are all planned ranges that reads wait for now."""
        self._unanswered.wanted(ranges)

    def planned(self, ranges: Iterable[PlannedRange]) -> None:
        """A batch reads these ranges, so it has these messages of their streams and no others."""
        if not self.clients:
            return
        for planned in ranges:
            client = self.clients.get(planned.key.scope)
            stream = None if client is None else client.streams.get(planned.key.stream_id)
            if stream is not None and isinstance(planned.end, int):
                stream.planned(planned.end)

    def resend_waits(self, prefix: str) -> dict[str, float]:
        """By instance of a door: the seconds for which a read has waited for what its client has to send again."""
        return self._unanswered.waits(prefix, self._now)

    def tick(self, now: float) -> None:
        """Time has passed; ``now`` is in monotonic seconds."""
        self._now = now
        if news := self.senders.tick(now):
            self._log(news)
        if self._unanswered:
            # Nobody can send messages again that a worker of this slot has numbered.
            for planned in list(self._unanswered.due(now, self._own)):
                self._give_up(planned)
        for client in [one for one in self.clients.values() if one.used_at + IDLE_SECONDS <= now and not one.busy]:
            client.end("nothing was asked of it")

    def _give_up(self, planned: PlannedRange) -> None:
        """Complete a range with what has come of it, once its instance is served here."""
        if planned in self._giving_up:
            return
        self._giving_up.add(planned)
        client = self.client(planned.key.scope)
        client.opening.when_done(lambda: self._close(planned, client))

    def _recorded(self, key: StreamKey, since: int, until: int) -> bool:
        """Whether it is recorded that a range was given up. If not, the range is tried again while a read waits."""
        known_since, known_until = self.given_up(key)
        recorded = known_since <= since and until <= known_until
        if not recorded:
            self.host.give_up(PlannedRange(key, since, until))
        return recorded

    def _close(self, planned: PlannedRange, client: DoorClient) -> None:
        self._giving_up.discard(planned)
        end = planned.end
        assert isinstance(end, int)
        if client.ended:
            # Another worker has the instance, or this one leaves. The range is tried again while a read waits for it.
            return
        stream = client.stream_of_id(planned.key.stream_id)
        if stream.last >= end:
            return
        # Nobody comes back for messages that a worker of this slot has numbered, so nothing has to be remembered.
        if not planned.key.scope.endswith(self._own) and not self._recorded(planned.key, stream.last, end):
            return
        self.host.count("dropped-unanswered", 1)
        text = (
            f"the client of {planned} has not come back, and was not answered; the batch goes on without the messages "
            f"behind {stream.last} (door.replayTimeout)"
        )
        self.host.note("door-given-up", planned.key.scope, text)
        self._log(text)
        stream.close_range(end)
        fence = self.fences.get(reserved(planned.key.scope))
        if fence is not None and (behind := fence(end)) > end:
            stream.close_range(behind)
