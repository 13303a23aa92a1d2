"""A real worker's OTLP door over gRPC, and the paths of OTLP on its HTTP door."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from tests.doors.otlp.requests import (
    COOKIE,
    committed,
    export,
    grpc_of,
    logs,
    method_of,
    metrics,
    post,
    running,
    traces,
    waiting,
)
from tests.pems import make_pems
from tests.waiting import SECONDS, eventually
from wallaroo_spark.doors.otlp.intake import ANSWER_BEFORE
from wallaroo_spark.testing.fake_worker import FakeWorker

BODY = traces("GET /").SerializeToString()
JSON = "application/json"
TOKEN = "t0ken-of-the-sh0p"


def status_of(error: Any) -> tuple[Status, RetryInfo | None]:
    """The details of an error."""
    (packed,) = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
    status, retry = Status.FromString(packed), RetryInfo()
    return status, retry if status.details and status.details[0].Unpack(retry) else None


def refused(worker: FakeWorker, body: bytes, **settings: Any) -> Any:
    with pytest.raises(grpc.RpcError) as error:
        export(worker, body, **settings)
    return error.value


def later(pool: ThreadPoolExecutor, worker: FakeWorker, call: Any, *given: Any, **settings: Any) -> Future[Any]:
    """Send in a thread; the worker has taken the request when this returns."""
    before = worker.status()["counts"].get("door-requests", 0)
    sent = pool.submit(call, worker, *given, **settings)
    eventually(lambda: worker.status()["counts"].get("door-requests", 0) > before or sent.done())
    return sent


def test_a_request_is_answered_when_it_is_committed() -> None:
    with running() as worker, ThreadPoolExecutor() as pool:
        over_grpc = later(pool, worker, export, BODY)
        over_http = later(pool, worker, post, logs("late").SerializeToString(), "logs")
        assert not over_grpc.done()
        assert not over_http.done()
        assert waiting(worker) == 2

        worker.commit(2)

        assert over_grpc.result(SECONDS) == b""
        status, fields, body = over_http.result(SECONDS)
        assert (status, fields["content-type"], body) == (200, "application/x-protobuf", b"")
    assert sorted((row["instance"], row["stream"], row["value"]) for row in committed(worker)) == [
        ("otlp/shop", "logs", logs("late").SerializeToString()),
        ("otlp/shop", "traces", BODY),
    ]


def test_a_compressed_body_stays_as_it_was_sent() -> None:
    body = traces("x" * 1000).SerializeToString()
    with running() as worker, worker.committing():
        export(worker, body, compression=grpc.Compression.Gzip)
        assert post(worker, gzip.compress(body), Content_Encoding="gzip")[0] == 200
    assert [gzip.decompress(row["value"]) for row in committed(worker)] == [body, body]


def test_json_is_answered_as_json() -> None:
    body = b' \n{"resourceSpans": [{"scopeSpans": []}]}'
    with running() as worker, worker.committing():
        status, fields, answer = post(worker, body, media=JSON)
        assert (status, fields["content-type"], answer) == (200, JSON, b"{}")
        assert post(worker, gzip.compress(body), media=JSON, Content_Encoding="gzip")[0] == 200
    assert [row["value"] for row in committed(worker)] == [body.strip()] * 2


def test_a_signal_of_door_received_is_answered_before_the_commit() -> None:
    with running(door_received=("logs",)) as worker:
        assert export(worker, logs("late").SerializeToString(), "logs") == b""
        assert post(worker, logs("later").SerializeToString(), "logs")[0] == 200
        assert refused(worker, BODY, seconds=1.0).code() is grpc.StatusCode.UNAVAILABLE


def test_an_empty_request_succeeds_without_a_row() -> None:
    with running() as worker:
        assert export(worker, b"", "metrics") == b""
        assert export(worker, b"", "metrics", compression=grpc.Compression.Gzip) == b""
        assert post(worker, b"", "logs")[::2] == (200, b"")
        assert post(worker, b"{}", "logs", JSON)[::2] == (200, b"{}")
        assert worker.status()["counts"].get("door-requests", 0) == 0


class TestRefusals:
    """Errors have OTLP's form."""

    def test_a_body_that_is_no_request(self) -> None:
        with running() as worker:
            error = refused(worker, b"hello")
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            status, retry = status_of(error)
            assert (status.code, status.message, retry) == (3, error.details(), None)
            assert status.message.endswith(" [otlp-body-unreadable]")
            code, fields, answer = post(worker, b"hello")
            assert (code, fields["content-type"]) == (400, "application/x-protobuf")
            assert Status.FromString(answer).message == error.details()
            code, _, answer = post(worker, b"[]", media=JSON)
            assert (code, json.loads(answer)["code"]) == (400, 3)
            assert json.loads(answer)["message"].endswith(" [otlp-body-unreadable]")
            counts = worker.status()["counts"]
            refusals = {name: number for name, number in counts.items() if name.startswith("door-refused:")}
            assert refusals == {"door-refused:otlp-body-unreadable": 3}

    def test_a_body_that_is_too_long(self) -> None:
        long = logs("x" * 4000).SerializeToString()
        with running(max_frame_bytes=1024) as worker:
            assert refused(worker, long, signal="logs").code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refused(worker, logs("x" * 940).SerializeToString()).code() is grpc.StatusCode.INVALID_ARGUMENT
            assert post(worker, long, "logs")[0] == 413

    def test_a_bomb(self) -> None:
        bomb = BODY + bytes(64 << 20)
        with running() as worker:
            error = refused(worker, bomb, compression=grpc.Compression.Gzip)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "decompressed" in error.details()
            assert post(worker, gzip.compress(bomb, 1), Content_Encoding="gzip")[0] == 413

    def test_another_media_type_path_method_and_encoding(self) -> None:
        with running() as worker:
            assert post(worker, BODY, media="text/plain")[0] == 415
            assert post(worker, BODY, Content_Encoding="br")[0] == 415
            assert post(worker, BODY, "profiles")[0] == 404
            assert worker.status()["counts"]["door-refused:otlp-media-type"] == 2
            with grpc.insecure_channel(grpc_of(worker)) as channel, pytest.raises(grpc.RpcError) as error:
                method_of(channel, "profiles")(BODY)
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED

    def test_a_client_without_the_cookie(self) -> None:
        with running(cookie=COOKIE) as worker, worker.committing():
            assert refused(worker, BODY).code() is grpc.StatusCode.UNAUTHENTICATED
            wrong = refused(worker, BODY, metadata=[("authorization", "Bearer wrong")])
            assert wrong.code() is grpc.StatusCode.UNAUTHENTICATED
            assert post(worker, BODY)[0] == 401
            assert worker.status()["counts"]["door-refused:otlp-unauthorized"] == 3
            assert export(worker, BODY, metadata=[("authorization", f"Bearer {COOKIE}")]) == b""
            assert post(worker, BODY, Authorization=f"Bearer {COOKIE}")[0] == 200

    def test_a_client_without_one_of_the_tokens(self, tmp_path: Path) -> None:
        tokens = tmp_path / "tokens"
        tokens.write_text(f"shop {TOKEN}\n", encoding="utf-8")
        with running(cookie=COOKIE, door_tokens=str(tokens)) as worker, worker.committing():
            error = refused(worker, BODY, metadata=[("authorization", f"Bearer {COOKIE}")])
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "door.tokens" in error.details()
            assert export(worker, BODY, metadata=[("authorization", f"Bearer {TOKEN}")]) == b""
            assert post(worker, BODY, Authorization=f"Bearer {TOKEN}")[0] == 200
            assert worker.status()["counts"]["door-requests:shop"] == 2


class TestSendAgain:
    """What may be sent again says so, and is recognised when it is."""

    def test_while_no_query_reads(self) -> None:
        with running(ready=False) as worker:
            error = refused(worker, BODY, seconds=0.5)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert status_of(error)[1] is not None

    def test_a_request_that_is_not_committed_in_time(self) -> None:
        with running() as worker:
            error = refused(worker, BODY, seconds=1.0)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            status, retry = status_of(error)
            assert status.code == 14
            assert retry is not None
            assert retry.retry_delay.seconds == 1
            assert ANSWER_BEFORE < 1

            with worker.committing():
                assert export(worker, BODY) == b""
        assert len(committed(worker)) == 1

    def test_a_request_whose_client_went_away(self) -> None:
        with running() as worker, ThreadPoolExecutor() as pool:
            with grpc.insecure_channel(grpc_of(worker)) as channel:
                call = method_of(channel).future(BODY)
                eventually(lambda: worker.status()["counts"].get("door-requests", 0) == 1)
                call.cancel()
                eventually(lambda: waiting(worker) == 0)
            again = pool.submit(export, worker, BODY)
            eventually(lambda: waiting(worker) == 1)
            worker.commit()
            assert again.result(SECONDS) == b""
        assert len(committed(worker)) == 1

    def test_what_was_answered_is_new_unless_dedupe_is_set(self) -> None:
        with running() as worker, worker.committing():
            export(worker, BODY)
            export(worker, BODY)
        assert len(committed(worker)) == 2
        with running(otlp_dedupe=60.0) as worker, worker.committing():
            export(worker, BODY)
            export(worker, BODY)
            post(worker, metrics().SerializeToString(), "metrics")
            post(worker, metrics().SerializeToString(), "metrics")
        assert len(committed(worker)) == 2

    def test_when_the_worker_has_no_memory(self) -> None:
        with running(memory_budget=1 << 20, max_frame_bytes=1 << 20) as worker, ThreadPoolExecutor() as pool:
            sent = later(pool, worker, export, traces("x" * 850_000).SerializeToString())
            eventually(lambda: worker.status()["counts"].get("messages", 0) == 1)
            error = refused(worker, BODY)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "memoryBudget" in error.details()
            assert status_of(error)[1] is not None
            status, fields, _ = post(worker, BODY)
            assert (status, fields["retry-after"]) == (503, "1")
            worker.commit()
            assert sent.result(SECONDS) == b""

    def test_when_the_worker_dies(self) -> None:
        with running() as worker, ThreadPoolExecutor() as pool:
            sent = later(pool, worker, export, BODY)
            over_http = later(pool, worker, post, BODY)
            worker.restart()
            error = sent.exception(SECONDS)
            assert isinstance(error, grpc.RpcError)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert over_http.result(SECONDS)[0] == 503


def test_many_clients_at_once_are_all_answered() -> None:
    def send(number: int) -> bytes:
        return export(worker, traces(*map(str, range(50)), service=f"shop-{number % 7}").SerializeToString())

    with running() as worker, worker.committing(), ThreadPoolExecutor(20) as pool:
        assert list(pool.map(send, range(100))) == [b""] * 100
    rows = committed(worker)
    assert len(rows) == 100
    assert {row["instance"] for row in rows} == {f"otlp/shop-{number}" for number in range(7)}


def test_the_door_speaks_tls(tmp_path: Path) -> None:
    pems = make_pems(tmp_path)
    tls = {"tls_certificate": pems.server, "tls_key": pems.server_key, "tls_workers_ca": pems.ca}
    with running(**tls) as worker, worker.committing():
        credentials = grpc.ssl_channel_credentials(Path(pems.ca).read_bytes())
        with grpc.secure_channel(grpc_of(worker), credentials) as channel:
            assert method_of(channel)(BODY, timeout=SECONDS) == b""
        with grpc.insecure_channel(grpc_of(worker)) as channel, pytest.raises(grpc.RpcError):
            method_of(channel)(BODY, timeout=2)
