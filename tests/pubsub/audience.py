"""What a subscriber may expect, checked with every item it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from wallaroo_spark.pubsub.messages import Closed, Snapshot, Why
from wallaroo_spark.pubsub.publishing.publication import Publication
from wallaroo_spark.pubsub.subscribing.merger import Delivered, MergedItem, Merger
from wallaroo_spark.pubsub.times import Frontier, Time, at_or_before, batch_of


class Violation(AssertionError):
    """A promise was broken."""


def _expect(condition: bool, says: str) -> None:
    if not condition:
        raise Violation(says)


class Audience:
    """Holds what one subscriber is given against what was published: ``truth`` has the payloads of every time."""

    def __init__(self, truth: dict[Time, list[bytes]], partitions: int, *, atomic: bool) -> None:
        self.atomic = atomic
        self._truth = truth
        self._partitions = partitions
        self._seen: dict[Time, Counter[bytes]] = {}
        self._fresh: set[Time] = set()
        self._frontier: tuple[Time, ...] | None = None
        self._first: dict[int, Time] = {}
        self._due: int | None = None

    def snapshot(self, partition: int, snapshot: Snapshot) -> None:
        """A publisher's first message; the very first says from where on its rows are owed without a filter."""
        self._first.setdefault(partition, snapshot.lower[0])

    def began(self, begun: int) -> None:
        """All snapshots are there; no publisher had sent anything of batch ``begun``, nor of what follows it."""
        if self._due is None:
            self._due = begun

    def restarted(self, frontier: tuple[Time, ...]) -> None:
        """Another process goes on."""
        _expect(frontier == self._frontier, f"the frontier is {frontier}, and {self._frontier} was told")
        self._frontier = None
        self._resumed = frontier

    def items(self, items: Iterable[MergedItem]) -> None:
        """The items that the application gets, in order."""
        for item in items:
            if isinstance(item, Delivered):
                self._delivered(item)
            else:
                self._moved(item)

    def closed(self, message: Closed, merger: Merger, partition: int, publication: Publication) -> None:
        """A publisher closes; only for a reason."""
        if message.why is Why.NOT_KEPT:
            asked = batch_of(merger.resumes_at(partition)[0])
            _expect(asked < publication.oldest, f"batch {asked} is kept, and was said not to be")
        _expect(message.why in (Why.NOT_KEPT, Why.SLOW), f"an unexpected close: {message}")

    def finish(self, frontier: tuple[Time, ...] | None, committed: int, *, ended: str) -> None:
        """No further item follows. A subscriber that is still connected has received every expected epoch."""
        self._whole()
        if not ended:
            _expect(frontier is not None, "the snapshots were never merged")
            assert frontier is not None
            _expect([batch_of(time) for time in frontier] == [committed], f"the frontier stays at {frontier}")
            missing = [time for time in self._truth if self._expected(time) and time not in self._seen]
            _expect(not missing, f"nothing of {missing} was delivered, and it began when all snapshots were there")
        if self.atomic:
            self._no_holes()
        elif not ended:
            self._all_since_the_snapshots()

    def _expected(self, time: Time) -> bool:
        return self._due is not None and batch_of(time) >= self._due

    def _delivered(self, item: Delivered) -> None:
        seen = self._seen.setdefault(item.time, Counter())
        payload = bytes(item.payload).rstrip()
        seen[payload] += 1
        _expect(payload in self._truth.get(item.time, []), f"{payload!r} was not published at {item.time}")
        _expect(seen[payload] == 1, f"{payload!r} is delivered twice")
        if self.atomic:
            _expect(item.partition == int(payload.split(b":")[0]), "a partition is named wrongly")
            self._fresh.add(item.time)
            if self._frontier is not None:
                may = any(at_or_before(element, item.time) for element in self._frontier)
                _expect(may, f"{item.time} is delivered behind the frontier {self._frontier}")

    def _moved(self, item: Frontier) -> None:
        before = self._frontier
        if before is not None:
            for time in item.frontier:
                back = not any(at_or_before(element, time) for element in before)
                _expect(not back, f"the frontier goes back from {before} to {item.frontier}")
        self._frontier = item.frontier
        late = [time for time in self._fresh if any(at_or_before(element, time) for element in item.frontier)]
        _expect(not late, f"{late} is delivered before the frontier {item.frontier} has passed it")
        self._whole()

    def _whole(self) -> None:
        """An epoch has been delivered completely when the frontier passes it."""
        for time in self._fresh:
            missing = len(self._truth[time]) - len(self._seen[time])
            _expect(not missing, f"{missing} messages of {time} are missing")
        self._fresh.clear()

    def _no_holes(self) -> None:
        for time in self._truth:
            passed = self._frontier is not None and not any(at_or_before(e, time) for e in self._frontier)
            if passed and time not in self._seen:
                earlier = [seen for seen in self._seen if at_or_before(seen, time)]
                _expect(not earlier, f"{time} is missing, and {earlier[:3]} was delivered before")

    def _all_since_the_snapshots(self) -> None:
        for time, payloads in self._truth.items():
            for payload in payloads:
                first = self._first[int(payload.split(b":")[0])]
                if batch_of(time) >= batch_of(first):
                    seen = payload in self._seen.get(time, {})
                    _expect(seen, f"{payload!r} was sent behind {first} and not delivered")
