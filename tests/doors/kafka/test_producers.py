"""The programs of all Kafka clients against the package's own worker: with their defaults, and with every codec."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from proving.producers import CODECS, IDEMPOTENT
from tests.doors.kafka.programs import program
from tests.doors.kafka.test_clients import committed, running
from tests.pems import make_pems
from tests.waiting import eventually

pytestmark = pytest.mark.long
RECORDS, RATE = 3000, 500
KILLS = 3


@pytest.mark.parametrize(
    ("client", "codec"), [(client, codec) for client, codecs in CODECS.items() for codec in ("", *codecs)]
)
def test_nothing_that_a_client_was_told_is_lost_when_workers_die(client: str, codec: str, tmp_path: Path) -> None:
    """Without a codec the client has all its defaults; with one it authenticates itself over TLS."""
    pems = make_pems(tmp_path)
    tls = {"cookie": "s3cret", "tls_certificate": pems.server, "tls_key": pems.server_key, "tls_workers_ca": pems.ca}
    more = ["--codec", codec, "--password", "s3cret", "--ca", pems.ca] if codec else []
    load = ["--first", "7", "--count", str(RECORDS), "--rate", str(RATE), "--value-bytes", "100"]
    with running(**tls if codec else {}) as (worker, servers), program(client, servers, "orders", *load, *more) as sent:
        for _ in range(KILLS):
            worker.commit(seconds=60)
            worker.read(seconds=60)
            worker.crash()
        with worker.committing():
            answered = len(sent.acked)
            eventually(lambda: len(sent.acked) > answered or sent.ended)
            sent.join(180)
        rows = committed(worker)
    wanted = set(range(7, 7 + RECORDS))
    found = Counter(int(row["value"]) for row in rows)
    assert set(sent.acked) | set(sent.failed) == wanted
    assert len(sent.acked) + len(sent.failed) == RECORDS
    assert set(sent.acked) <= set(found) <= wanted
    assert {(row["instance"], row["stream"], row["key"], len(row["value"])) for row in rows} == {
        ("kafka/billing", "orders", b"billing", 100)
    }
    if client in IDEMPOTENT:
        assert not sent.failed
        values = [int(row["value"]) for row in rows]
        assert values == sorted(wanted)
