"""Once with everything locked: workers behind TLS, a cookie, and a Redis with a password, all named by reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.receiver.support import Batches, Feeders, addresses, numbered, payloads
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def feeders() -> Iterator[Feeders]:
    with Feeders() as opened:
        yield opened


def test_rows_arrive_over_tls_with_secrets_kept_elsewhere(
    spark: SparkSession, feeders: Feeders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "certificate", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    certificate.private_key_pem.write_to_path(files["key"])
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(files["certificate"], append=True)
    (tmp_path / "cookie").write_text("a secret\n")
    batches = Batches()
    with EmbeddedRedis() as redis:
        assert ":@" not in redis.url
        # The source's reader is a process whose environment was fixed when the session began, so a file it is.
        (tmp_path / "registry").write_text(redis.url)
        options = {"registry": f"file:{tmp_path}/registry", "cookie": f"file:{tmp_path}/cookie"}
        tls = {"tls.certificate": files["certificate"], "tls.key": files["key"]}
        with Receiver(spark, "orders", workers=1, **options, **tls) as receiver:
            query = receiver.start(
                receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint")
            )
            workers = addresses(receiver)
            connector = feeders.connect("shop-1", workers, cookie="a secret", ca=files["ca"])
            feeders.feed(connector, numbered("sealed", 1, 50)).result(60)
            with pytest.raises(RemoteProtocolError, match="cookie") as refused:
                feeders.connect("shop-2", workers, cookie="another", ca=files["ca"]).open("any")
            shown = f"{receiver.options!r} {receiver.status()} {refused.value} {query.lastProgress}"

    assert batches.values("sealed") == payloads("sealed", 1, 50)
    assert "a secret" not in shown
    assert redis.url not in shown
