"""With everything locked: both ports of the workers behind TLS, a cookie, and a Redis with a password, all named by
reference.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pems import Pems
from tests.receiver.support import Batches, Feeders, addresses, numbered, payloads
from tests.security.acl import users
from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import ConfigurationError, RemoteProtocolError, TransportError
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis, Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("authority", [pytest.param("tls.workersCa", marks=pytest.mark.long), "tls.ca"])
def test_rows_arrive_over_tls_with_secrets_kept_elsewhere(
    spark: SparkSession,
    feeders: Feeders,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pems: Pems,
    authority: str,
) -> None:
    (tmp_path / "cookie").write_text("a secret\n")
    batches = Batches()
    with EmbeddedRedis() as redis, Registry(redis.url, "orders") as registry:
        assert ":@" not in redis.url
        # The very user of the page, and not one that may do everything.
        (tmp_path / "registry").write_text(users(redis.url)["fleet"])
        (tmp_path / "token").write_text("the fleet's own")
        options = {
            "token": f"file:{tmp_path}/token",
            "registry": f"file:{tmp_path}/registry",
            "cookie": f"file:{tmp_path}/cookie",
        }
        tls = {"tls.certificate": pems.server, "tls.key": pems.server_key, authority: pems.ca}
        # tls.ca asks connectors for a certificate each; the inner port is content with the token.
        own = {"certificate": pems.client, "key": pems.client_key} if authority == "tls.ca" else {}
        with Receiver(spark, "orders", workers=1, **options, **tls) as receiver:
            query = receiver.start(
                receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint")
            )
            workers, inner, token = addresses(receiver), registry.leases()[0].flight, "the fleet's own"
            connector = feeders.connect("shop-1", workers, cookie="a secret", ca=pems.ca, **own)
            feeders.feed(connector, numbered("sealed", 1, 50)).result(SECONDS)
            with pytest.raises(RemoteProtocolError, match="cookie") as refused:
                feeders.connect("shop-2", workers, cookie="another", ca=pems.ca, **own).open("any")
            with pytest.raises(TransportError, match="both sides use TLS") as plain:
                WorkerClient(inner, token).status()
            assert WorkerClient(inner, token, trust=Trust.of(receiver.options)).status()["sessions"] == 1
            shown = f"{receiver.options!r} {receiver.status()} {refused.value} {plain.value} {query.lastProgress}"

    assert batches.values("sealed") == payloads("sealed", 1, 50)
    assert [secret for secret in ("a secret", redis.url, "pass-of-fleet", token) if secret in shown] == []


def test_a_receiver_that_cannot_verify_its_workers_does_not_start_and_ends_their_jobs(
    spark: SparkSession, pems: Pems, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It cannot ask them to leave either, so there is nothing to wait for.
    monkeypatch.setattr("wallaroo_spark.runtime.handle.STOP_SECONDS", 1.0)
    tls = {"tls.certificate": pems.server, "tls.key": pems.server_key, "tls.workersCa": pems.other_ca}
    with (
        pytest.raises(ConfigurationError, match=r"slot 0: .*verify failed.*tls\.workersCa"),
        Receiver(spark, "orders", workers=1, **tls),
    ):
        pytest.fail("it must not start")
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("wallaroo-orders")])
