"""Real subscribers follow real publishers: files, Redis and sockets, without Spark."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.pems import Pems
from tests.pubsub.running import COOKIE, TOPIC, Stage, new_stage
from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub import Epoch, Frontier, Subscription, subscribe
from wallaroo_spark.pubsub.messages import Why
from wallaroo_spark.pubsub.publishing.publisher import ENDED
from wallaroo_spark.registry import EmbeddedRedis

BATCHES = 40
PARTITIONS = 2


@pytest.fixture
def stage(file_redis: EmbeddedRedis, tmp_path: Path) -> Iterator[Stage]:
    with new_stage(tmp_path, file_redis.url) as made:
        yield made


def following(stage: Stage, **settings: object) -> Subscription:
    given: dict[str, Any] = {"lost_after": SECONDS, **settings}
    return subscribe(TOPIC, registry=stage.registry, cookie=COOKIE, **given)


class Follower(threading.Thread):
    """Follows a topic until the frontier reaches the end or the test stops it, and records every item."""

    def __init__(self, stage: Stage, end: int) -> None:
        super().__init__(daemon=True)
        self.seen: dict[int, list[int]] = {}
        self.reached = -1
        self.error: BaseException | None = None
        self._end = end
        self.subscription = following(stage)

    def run(self) -> None:
        try:
            for item in self.subscription:
                if isinstance(item, Epoch):
                    assert isinstance(item.epoch, int)
                    assert item.epoch >= self.reached, "an epoch comes behind the frontier"
                    self.seen.setdefault(item.epoch, []).extend(item.batch.column("n").to_pylist())
                elif isinstance(item.frontier[0], int):
                    assert item.frontier[0] > self.reached, "the frontier stands or goes back"
                    self.reached = item.frontier[0]
                    if self.reached >= self._end:
                        return
        except BaseException as error:
            self.error = error
        finally:
            self.subscription.close()


def test_everybody_sees_whole_epochs_while_publishers_and_subscribers_come_and_go(stage: Stage) -> None:
    dice = random.Random(5)
    stage.announce(PARTITIONS)
    truth: dict[int, list[int]] = {}
    followers: list[Follower] = []
    lives = [ExitStack() for _ in range(PARTITIONS)]
    for partition, life in enumerate(lives):
        life.enter_context(stage.publisher(partition, partitions=PARTITIONS))
    for batch in range(BATCHES):
        rows = [[dice.randrange(1000) for _ in range(dice.randint(0, 3))] for _ in range(4)]
        truth[batch] = sorted(number for part in rows for number in part)
        stage.publish(batch, *rows)
        stage.commit(batch)
        if batch % 8 == 3:
            partition = dice.randrange(PARTITIONS)
            lives[partition].close()
            lives[partition].enter_context(stage.publisher(partition, partitions=PARTITIONS))
        if batch % 5 == 2:
            service = dice.choice(stage.services[-PARTITIONS:])
            for peer in list(service._peers.values()):
                service._loop.call_soon_threadsafe(peer.stream.abort)  # type: ignore[union-attr]  # it runs
        if batch % 6 == 0:
            followers.append(Follower(stage, BATCHES))
            followers[-1].start()
            eventually(lambda: followers[-1].reached >= 0 or followers[-1].error is not None)
        if batch % 13 == 12:
            dice.choice(followers[1:]).subscription.close()
    for follower in followers:
        follower.join(SECONDS)
    for life in lives:
        life.close()

    assert [follower.error for follower in followers] == [None] * len(followers)
    assert sum(follower.reached == BATCHES for follower in followers) >= 4
    for follower in followers:
        # One that was closed may have been given rows of an epoch that it was not told the end of.
        whole = {epoch: sorted(rows) for epoch, rows in follower.seen.items() if epoch < follower.reached}
        assert whole == {
            epoch: rows
            for epoch, rows in truth.items()
            if rows and min(whole, default=BATCHES) <= epoch < follower.reached
        }
    assert len(followers[0].seen) > BATCHES / 2


def test_a_slow_subscriber_is_cut_off_while_another_goes_on(stage: Stage) -> None:
    stage.announce()
    size = 400_000
    with (
        stage.publisher(max_subscriber_bytes=3 * size, retain=200),
        following(stage) as slow,
        following(stage) as quick,
    ):
        assert isinstance(next(slow), Frontier)
        assert isinstance(next(quick), Frontier)
        machine, batch = stage.services[-1].machine, 0
        while machine.subscribers == 2:
            assert batch < 150, "nobody is cut off, though nobody reads"
            stage.publish(batch, list(range(size // 8)))
            stage.commit(batch)
            while next(quick).__class__ is Epoch:
                pass
            batch += 1

        with pytest.raises(PubSubError, match="is too slow") as caught:
            for _ in slow:
                pass
        assert caught.value.fields["why"] == Why.SLOW
        stage.publish(batch, [1])
        stage.commit(batch)
        assert next(quick) is not None


def test_a_topic_over_tls_that_ends_ends_the_iteration(stage: Stage, pems: Pems) -> None:
    stage.announce()
    mine: dict[str, Any] = {"tls_certificate": pems.server, "tls_key": pems.server_key, "advertise": "localhost"}
    with stage.publisher(**mine), following(stage, tls_ca=pems.ca) as topic:
        next(topic)
        stage.publish(0, [1], [2])
        stage.commit(0)
        epochs = topic.epochs()
        assert [(time, table.column("n").to_pylist()) for time, table in [next(epochs)]] == [(0, [1, 2])]
        stage.leases.publish_fleet({ENDED: "yes"})
        stage.leases.forget_slots_from(0)
        assert list(epochs) == []
