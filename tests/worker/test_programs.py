"""Programs that give their messages no ids, against a worker that really runs: none of them is swallowed."""

from __future__ import annotations

import pytest

from tests.waiting import SECONDS, eventually
from tests.worker.running import COOKIE, Running
from wallaroo_spark.connector import Backoff, BlockingConnector
from wallaroo_spark.errors import RemoteProtocolError, WallarooError
from wallaroo_spark.transport import format_address

STREAM = 7


def program(worker: Running, revision: str = "draft-be") -> BlockingConnector:
    return BlockingConnector(
        "orders",
        instance="shop-1",
        workers=format_address(*worker.address),
        cookie=COOKIE,
        revision=revision,
        retry=Backoff(initial=0.02, maximum=0.2, give_up_after=SECONDS),
    )


def scope(revision: str) -> str:
    return "" if revision == "v3" else "shop-1"


def held(worker: Running, count: int) -> None:
    eventually(lambda: worker.count("messages") == count, f"{count} messages are held")


def payloads(worker: Running, revision: str, end: int) -> list[bytes]:
    return [row["value"] for row in worker.rows(scope(revision), STREAM, None, end) if row["value"] is not None]


@pytest.fixture(params=["draft-be", "draft-le", "v3"])
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_messages_of_a_restarted_program_are_new_while_earlier_ones_are_uncommitted(
    worker: Running, revision: str
) -> None:
    before = program(worker, revision)
    before.open("a", id=STREAM).send_many([b"1", b"2", b"3"])
    held(worker, 3)
    before.close()
    eventually(lambda: worker.client.status()["sessions"] == 0)
    with program(worker, revision) as after:
        stream = after.open("a", id=STREAM)
        assert stream.reference is None
        last = stream.send_many([b"4", b"5"])
        assert last is not None
        held(worker, 5)
        assert payloads(worker, revision, last) == [b"1", b"2", b"3", b"4", b"5"]
        worker.commit({scope(revision): {str(STREAM): last}})


def test_a_restarted_program_continues_behind_the_committed_reference(worker: Running, revision: str) -> None:
    worker.rewind({scope(revision): {str(STREAM): 5_000_000_000_000_000_000}})
    with program(worker, revision) as sender:
        stream = sender.open("a", id=STREAM)
        assert stream.reference == 5_000_000_000_000_000_000
        assert stream.send(b"x") == 5_000_000_000_000_000_001
        worker.commit({scope(revision): {str(STREAM): 5_000_000_000_000_000_001}})


def test_of_two_programs_under_one_name_the_older_ends_with_an_error_and_no_message_is_swallowed(
    worker: Running,
) -> None:
    older, newer = program(worker), program(worker)
    first = older.open("a", id=STREAM)
    first.send_many([b"1", b"2", b"3"])
    held(worker, 3)
    second = newer.open("a", id=STREAM)
    with pytest.raises(RemoteProtocolError) as caught:
        first.flushed()
    assert "a newer session of instance 'shop-1'" in caught.value.message
    assert "give each program an instance name of its own" in caught.value.message
    last = second.send(b"4")
    held(worker, 4)
    assert payloads(worker, "draft-be", last) == [b"1", b"2", b"3", b"4"]

    # It does not come back to take the other's place in turn, whatever is acknowledged meanwhile.
    worker.commit({"shop-1": {str(STREAM): last}})
    newer.drain(SECONDS)
    assert first.acknowledged is None
    with pytest.raises(WallarooError, match="takes its place"):
        older.drain(SECONDS)
    assert worker.count("connections") == 2
    older.close()
    newer.close()


def test_an_acknowledgement_for_another_program_acknowledges_none_of_our_messages(worker: Running) -> None:
    sender = program(worker)
    stream = sender.open("a", id=STREAM)
    last = stream.send_many([b"1", b"2", b"3"])
    assert last is not None
    held(worker, 3)
    worker.commit({"shop-1": {str(STREAM): last + 1_000_000_000_000}})
    with pytest.raises(WallarooError, match="another program sends this stream under the same instance name"):
        sender.drain(SECONDS)
    assert stream.unacknowledged == 3
    sender.close()
