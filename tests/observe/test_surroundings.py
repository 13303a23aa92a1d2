"""Topics and sinks on the status page: read from a real registry and checkpoint, seldom, and never a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.security.acl import users
from tests.sinks.two_phase.decided import decided
from wallaroo_spark.cli.main import cli
from wallaroo_spark.observe import surroundings
from wallaroo_spark.observe.receiver import PartitionStatus, SinkStatus, TopicStatus
from wallaroo_spark.observe.surroundings import Surroundings
from wallaroo_spark.pubsub.topic_catalog import TopicCatalog, TopicRecord
from wallaroo_spark.registry import EmbeddedRedis


def test_topics_and_sinks_are_shown(own_redis: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided(tmp_path, "postgres", finished=True)
    with TopicCatalog(own_redis.url, lease_seconds=300) as topics:
        topics.announce(TopicRecord("totals", 1, "history", False, b"", "a driver"))
        around = Surroundings()
        around.look(own_redis.url, str(tmp_path))

        assert around.sinks == (SinkStatus("postgres", "finished", 7),)
        vacant = PartitionStatus(0, "vacant", None, None, 0)
        assert around.topics == (TopicStatus("totals", "a driver", "history", (vacant,)),)

        decided(tmp_path, "kafka", finished=False)
        around.look(own_redis.url, str(tmp_path))
        assert len(around.sinks) == 1
        monkeypatch.setattr(surroundings, "INTERVAL_SECONDS", 0.0)
        around.look(own_redis.url, str(tmp_path))
        assert {sink.sink: sink.state for sink in around.sinks} == {"kafka": "committed", "postgres": "finished"}


def test_a_redis_user_without_the_right_to_scan_is_told_so(own_redis: EmbeddedRedis) -> None:
    url = users(own_redis.url)
    with TopicCatalog(own_redis.url, lease_seconds=300) as topics:
        topics.announce(TopicRecord("totals", 1, "history", False, b"", "a driver"))
    around = Surroundings()

    around.look(url["fleet"], "")

    assert around.topics == ()
    assert around.unread == (
        "Topics are not shown, because the Redis user of the registry's URL may not list them: they need +scan, as the "
        "user operators of docs/security.md has",
    )
    shown = CliRunner().invoke(cli, ["status", "--registry", url["fleet"], "--receiver", "orders", "--json"])
    answer = json.loads(shown.stdout)
    assert (tuple(answer["unread"]), answer["registry_error"]) == (around.unread, "")

    allowed = Surroundings()
    allowed.look(url["operators"], "")
    assert ([topic.topic for topic in allowed.topics], allowed.unread) == (["totals"], ())


def test_topics_and_sinks_that_cannot_be_read_are_left_out_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "file"
    broken.write_text("no folder")
    around = Surroundings()

    around.look("redis://127.0.0.1:1", str(broken))
    assert (around.topics, around.sinks) == ((), ())
    assert around.unread[0].startswith(
        "Topics are not shown: Redis at 127.0.0.1:1 cannot be reached to list the topics"
    )
    around.look("", "")
