"""A real worker's HTTP door, with real clients; the query is committed by hand."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from tests.doors.http.client import ID, Client, everything
from tests.waiting import SECONDS, eventually
from tests.worker.running import COOKIE, Fleet
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.transport import tcp

Make = Callable[..., Client]
OWN = "http/worker-0"
CURL = shutil.which("curl")


def test_a_request_is_answered_when_its_messages_are_committed(client: Client) -> None:
    waiting = client.later(b'[{"a": 1}, {"b": 2}]')
    assert not waiting.done()
    assert client.worker.client.status()["door_list"][0]["waiting"] == 1

    reference = client.commit()

    answer = waiting.result(SECONDS)
    assert answer.status == 200
    assert answer.json == {"committed": 2, "reference": reference}


def test_the_messages_are_rows_of_the_clients_instance_and_stream(client: Client) -> None:
    client.later(
        b"one\ntwo\n",
        Content_Type="application/x-ndjson",
        Wallaroo_Instance="shop-1",
        Wallaroo_Token="42",
        Wallaroo_Key="k",
    )

    rows = client.worker.rows("http/shop-1", ID, None, 42)

    assert [(row["instance"], row["stream"], row["message_id"], row["value"], row["key"]) for row in rows] == [
        ("http/shop-1", "orders", 42, b"one", b"k"),
        ("http/shop-1", "orders", 42, b"two", b"k"),
    ]


def test_a_body_without_messages_has_nothing_to_wait_for(client: Client) -> None:
    assert client.post(b"[]").json == {"committed": 0, "reference": None}


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_body_is_decompressed(client: Client, encoding: str) -> None:
    body = gzip.compress(b"one\ntwo") if encoding == "gzip" else pa.compress(b"one\ntwo", "zstd", asbytes=True)
    client.later(
        body, Content_Type="application/x-ndjson", Content_Encoding=encoding, Wallaroo_Instance="a", Wallaroo_Token="1"
    )

    assert [row["value"] for row in client.worker.rows("http/a", ID, None, 1)] == [b"one", b"two"]


class TestTokens:
    """Exactly once: a request that comes again is recognised."""

    def post(self, client: Client, token: int, body: bytes = b"{}") -> dict[str, object]:
        answer = client.post(body, Wallaroo_Instance="shop-1", Wallaroo_Token=str(token))
        return {"status": answer.status, **answer.json}

    def test_a_committed_token_is_answered_at_once(self, client: Client) -> None:
        client.worker.commit({"http/shop-1": {str(ID): 42}})

        assert self.post(client, 42) == {"status": 200, "committed": 1, "reference": 42}
        assert self.post(client, 7) == {"status": 200, "committed": 1, "reference": 7}
        assert client.worker.count("messages") == 0

    def test_a_token_under_way_waits_for_the_same_commit(self, client: Client) -> None:
        first = client.later(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="42")
        again = client.later(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="42")

        client.commit("http/shop-1")

        assert first.result(SECONDS).json == again.result(SECONDS).json == {"committed": 1, "reference": 42}
        assert client.worker.count("messages") == 1

    def test_a_token_that_comes_too_late_is_refused(self, client: Client) -> None:
        client.later(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="42")

        assert client.post(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="41").code == "http-token-order"

    def test_the_stream_tells_where_to_go_on(self, client: Client) -> None:
        ask = lambda: client.ask("GET", "/v1/streams/orders", Wallaroo_Instance="shop-1").json  # noqa: E731 -- asked twice
        assert ask() == {"stream": "orders", "instance": "shop-1", "committed": None}

        client.worker.commit({"http/shop-1": {str(ID): 42}})

        assert eventually(lambda: ask()["committed"]) == 42

    def test_the_next_worker_recognises_what_the_last_one_has_committed(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(http_port=0)
        first = Client(fleet.start())
        waiting = first.later(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="42")
        first.commit("http/shop-1")
        assert waiting.result(SECONDS).status == 200
        first.worker.client.stop("a test")
        first.worker.ended()

        second = fleet.start(submission=2, ready=False)
        second.rewind({"http/shop-1": {str(ID): 42}})
        client = Client(second)

        assert self.post(client, 42) == {"status": 200, "committed": 1, "reference": 42}
        assert client.worker.count("messages") == 0

    @pytest.mark.parametrize(
        "fields",
        [
            {"Wallaroo-Token": "1"},
            {"Wallaroo-Token": "x", "Wallaroo-Instance": "a"},
            {"Wallaroo-Token": "0", "Wallaroo-Instance": "a"},
            {"Wallaroo-Token": str(1 << 63), "Wallaroo-Instance": "a"},
            {"Wallaroo-Instance": "worker-7"},
            {"Wallaroo-Instance": "a" * 251},
        ],
    )
    def test_fields_that_make_no_sense_are_refused(self, client: Client, fields: dict[str, str]) -> None:
        assert client.post(b"{}", **fields).code == "http-field-unreadable"

    def test_a_token_whose_range_was_given_up_is_not_confirmed(self, make_door: Make) -> None:
        client = make_door(door_replay_timeout=0.0)
        client.worker.commit({"http/shop-1": {str(ID): 40}})
        # A batch was planned with 41 and 42; its worker has died.
        client.worker.rows("http/shop-1", ID, 40, 42)
        client.worker.commit({"http/shop-1": {str(ID): 42}})

        again = eventually(lambda: self.settled(client, 42))

        assert again.code == "http-token-given-up"
        assert client.post(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="40").status == 200
        assert client.worker.count("dropped-unanswered") == 1

    def settled(self, client: Client, token: int) -> object:
        """The answer to a token, once the stream has a name again."""
        answer = client.post(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token=str(token))
        return answer if answer.status != 503 else None


class TestRepeats:
    """Requests without a token that come again to the same worker."""

    def test_an_idempotency_key_is_recognised(self, client: Client) -> None:
        first = client.later(b"{}", Idempotency_Key="7")
        again = client.later(b"{}", Idempotency_Key="7")
        client.later(b"{}", Idempotency_Key="8")

        client.commit(messages=2)

        assert first.result(SECONDS).json["reference"] == again.result(SECONDS).json["reference"]
        assert client.worker.count("messages") == 2

    def test_a_cloud_event_is_recognised_by_source_and_id(self, client: Client) -> None:
        events = [{"specversion": "1.0", "id": str(at), "source": "s", "type": "t"} for at in range(3)]
        media = "application/cloudevents-batch+json"
        client.later(json.dumps(events[:2]).encode(), Content_Type=media)
        second = client.later(json.dumps(events).encode(), Content_Type=media)
        third = client.later(json.dumps(events[:1]).encode(), Content_Type=media)

        client.commit(messages=3)

        assert second.result(SECONDS).json["committed"] == 3
        assert third.result(SECONDS).status == 200
        assert client.worker.count("messages") == 3


class TestAnswersThatComeLater:
    """202, and the place at which to ask."""

    def test_respond_async_is_answered_at_once_and_asked_for(self, client: Client) -> None:
        answer = client.post(b"[1, 2]", Prefer="respond-async", Wallaroo_Instance="shop/1", Wallaroo_Token="5")
        assert answer.status == 202
        assert answer.json == {"received": 2, "reference": 5}
        assert answer.fields["preference-applied"] == "respond-async"
        place = answer.fields["location"]
        assert place == "/v1/streams/orders/requests/5?instance=shop%2F1"
        assert client.ask("GET", place).status == 202
        polling = client._pool.submit(lambda: client.ask("GET", f"{place}&wait=60"))

        client.commit("http/shop/1", messages=2)

        assert polling.result(SECONDS).json == {"committed": 2, "reference": 5}
        assert client.ask("GET", place).status == 200

    def test_a_commit_that_takes_long_is_answered_with_202(self, make_door: Make) -> None:
        client = make_door(http_timeout=0.1)

        answer = client.post(b"{}")

        assert answer.status == 202
        assert "preference-applied" not in answer.fields
        reference = client.commit()
        assert eventually(lambda: client.ask("GET", answer.fields["location"]).status == 200)
        assert answer.json["reference"] == reference

    def test_a_stream_may_be_answered_when_it_is_received(self, make_door: Make) -> None:
        client = make_door(door_received=("logs.*",))

        answer = client.post(b"[1, 2]", stream="logs.web")

        assert answer.status == 202
        assert answer.json["received"] == 2
        assert client.worker.client.status()["door_received"] == ["logs.*"]
        client.commit(name="logs.web", messages=2)
        assert eventually(lambda: client.ask("GET", answer.fields["location"]).status == 200)
        assert not client.later(b"{}").done()

    @pytest.mark.parametrize("reference", ["7", "x", "-1", "9" * 30])
    def test_a_request_that_the_worker_does_not_have_is_unknown(self, client: Client, reference: str) -> None:
        assert client.ask("GET", f"/v1/streams/orders/requests/{reference}").code == "http-request-unknown"

    def test_a_wait_is_a_number_of_seconds(self, client: Client) -> None:
        assert client.ask("GET", "/v1/streams/orders/requests/7?wait=ever").code == "http-field-unreadable"


class TestAccess:
    """Who may send."""

    @pytest.mark.parametrize(
        "given", ["", "Bearer", "Bearer wrong", f"Basic {COOKIE}", f"Bearer {COOKIE}x", "Bearer \xff"]
    )
    def test_a_request_needs_the_cookie(self, client: Client, given: str) -> None:
        for answer in (
            client.post(b"{}", Authorization=given),
            client.ask("GET", "/v1/streams/orders", Authorization=given),
            client.ask("GET", "/v1/streams/orders/requests/7", Authorization=given),
        ):
            assert answer.code == "http-unauthorized"
            assert answer.fields["www-authenticate"].startswith("Bearer")

    def test_named_clients_have_tokens_of_their_own(self, make_door: Make, tmp_path: Path) -> None:
        tokens, shop, billing = tmp_path / "tokens", "s" * 20, "b" * 20
        tokens.write_text(f"shop {shop}\n")
        client = make_door(door_tokens=str(tokens))

        assert client.post(b"[]").code == "http-unauthorized"
        assert client.post(b"[]", Authorization=f"Bearer {shop}").status == 200
        client.later(b"{}", Authorization=f"Bearer {shop}")
        assert client.worker.count("door-requests:shop") == 1
        assert b"Bearer TOKEN" in client.ask("GET", "/", Authorization="").body

        tokens.write_text(f"billing {billing}\n")
        eventually(lambda: client.post(b"[]", Authorization=f"Bearer {billing}").status == 200)
        refused = client.post(b"[]", Authorization=f"Bearer {shop}")
        assert refused.code == "http-unauthorized"
        assert "door.tokens" in refused.json["detail"]

    def test_a_page_of_another_origin_may_not_send(self, make_door: Make) -> None:
        client = make_door(http_origins=("https://shop.example.com",))

        assert client.post(b"{}", Origin="https://evil.example.com").code == "http-origin"
        assert client.post(b"{}", Origin="null").code == "http-origin"
        allowed = client.post(b"[]", Origin="https://shop.example.com")
        assert allowed.status == 200
        assert allowed.fields["access-control-allow-origin"] == "https://shop.example.com"

    def test_a_browser_is_told_what_it_may_send(self, make_door: Make) -> None:
        client = make_door(http_origins=("*",))

        answer = client.ask("OPTIONS", "/v1/streams/orders", Origin="https://a.example.com", Authorization="")

        assert answer.status == 204
        assert answer.fields["access-control-allow-origin"] == "https://a.example.com"
        assert "Wallaroo-Token" in answer.fields["access-control-allow-headers"]

    def test_without_a_cookie_only_names_of_this_machine_are_answered(self, make_door: Make) -> None:
        client = make_door(cookie="")

        assert client.post(b"[]").status == 200
        for host in ("localhost:80", "[::1]:80", "127.0.0.1"):
            assert client.post(b"[]", Host=host).status == 200
        assert client.post(b"[]", Host="evil.example.com").code == "http-origin"

    def test_the_page_shows_lines_to_copy_and_no_secret(self, client: Client) -> None:
        answer = client.ask("GET", "/", Authorization="")

        assert answer.status == 200
        assert answer.body.count(b"curl ") == 3
        assert COOKIE.encode() not in answer.body


class TestRefusals:
    """What cannot be taken is refused with a problem that has a code."""

    @pytest.mark.parametrize(
        ("method", "path", "code"),
        [
            ("GET", "/favicon.ico", "http-no-such-path"),
            ("POST", "/v1/streams", "http-no-such-path"),
            ("PUT", "/v1/streams/orders", "http-method"),
            ("POST", "/", "http-method"),
            ("POST", "/v1/streams/", "http-field-unreadable"),
            ("POST", "/v1/streams/" + "a" * 1025, "http-field-unreadable"),
            ("POST", "/v1/streams/%FF", "http-malformed"),
        ],
    )
    def test_paths_and_methods(self, client: Client, method: str, path: str, code: str) -> None:
        assert client.ask(method, path, b"{}", Content_Type="application/json").code == code

    def test_a_body_is_refused_by_its_announced_and_by_its_real_length(self, make_door: Make) -> None:
        client = make_door(http_max_body=2000)

        assert client.post(b"x" * 2001, "text/plain").code == "http-body-too-large"
        with client.raw() as raw:
            raw.sendall(
                b"POST /v1/streams/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                b"Authorization: Bearer " + COOKIE.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            raw.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n" + b"3e9\r\n" + b"x" * 1001 + b"\r\n")
            assert b" 413 " in everything(raw)

    def test_before_a_query_has_started_a_request_may_be_sent_again(
        self, make_door: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wallaroo_spark.doors.http.requests.OPEN_SECONDS", 0.1)
        client = make_door(ready=False)

        answer = client.post(b"{}")

        assert answer.code == "http-not-ready"
        assert answer.fields["retry-after"] == "1"

    def test_a_full_worker_takes_no_request_until_there_is_room(self, make_door: Make) -> None:
        client = make_door(memory_budget=1 << 20, credits="fixed")
        client.later(b"x" * (900 << 10), Content_Type="text/plain")
        eventually(lambda: client.worker.client.status()["pressure"] == "soft")

        assert client.post(b"{}").code == "http-full"

        client.commit()
        assert eventually(lambda: client.post(b"[]").status == 200)

    def test_an_instance_of_another_slot_is_sent_there(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(http_port=0, workers=2)
        one, two = Client(fleet.start(slot=0)), Client(fleet.start(slot=1))
        one.later(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="1")

        answer = two.post(b"{}", Wallaroo_Instance="shop-1", Wallaroo_Token="1")

        # The system has chosen the ports, so no worker knows that of another one.
        assert answer.code == "http-elsewhere"
        assert "slot 0" in answer.json["detail"]


class TestBadManners:
    """Clients that are slow, lie, or go."""

    HEAD = (
        b"POST /v1/streams/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nAuthorization: Bearer "
        + COOKIE.encode()
        + b"\r\n"
    )

    def test_a_head_that_drips_is_ended(self, make_door: Make) -> None:
        client = make_door(handshake_timeout=0.3)
        with client.raw() as raw:
            raw.sendall(b"POST / HTTP/1.1\r\n")
            assert b" 408 " in everything(raw)

    def test_a_peer_that_says_nothing_is_closed(self, make_door: Make) -> None:
        client = make_door(handshake_timeout=0.3)
        with client.raw() as raw:
            assert everything(raw) == b""

    def test_a_body_that_drips_is_ended_and_leaves_nothing(self, make_door: Make) -> None:
        client = make_door(handshake_timeout=0.3)
        with client.raw() as raw:
            raw.sendall(self.HEAD + b"Content-Length: 1000\r\n\r\nhello")
            assert b" 408 " in everything(raw)
        assert client.worker.count("messages") == 0
        assert client.worker.client.status()["unfinished_bytes"] == 0

    def test_slow_clients_take_no_more_than_the_connections_of_the_worker(self, make_door: Make) -> None:
        client = make_door(max_sessions=4)
        with ExitStack() as stack:
            for slow in [stack.enter_context(client.raw()) for _ in range(4)]:
                slow.sendall(self.HEAD + b"Content-Length: 1000\r\n\r\nh")
            eventually(lambda: client.worker.client.status()["unfinished_bytes"] == 4)

            assert client.post(b"[]").code == "http-full"

        assert eventually(lambda: client.post(b"[]").status == 200)

    @pytest.mark.parametrize("encoding", ["gzip", "zstd"])
    def test_a_bomb_is_refused_and_leaves_nothing(self, client: Client, encoding: str) -> None:
        zeros = bytes(64 << 20)
        bomb = gzip.compress(zeros) if encoding == "gzip" else pa.compress(zeros, "zstd", asbytes=True)

        answer = client.post(bomb, "application/x-ndjson", Content_Encoding=encoding)

        assert answer.code == "http-body-too-large"
        assert client.worker.count("messages") == 0
        assert client.worker.client.status()["unfinished_bytes"] == 0

    def test_a_client_that_goes_within_its_body_leaves_nothing(self, client: Client) -> None:
        with client.raw() as raw:
            raw.sendall(self.HEAD + b"Content-Length: 1000\r\n\r\nhello")
            eventually(lambda: client.worker.client.status()["unfinished_bytes"] == 5)

        eventually(lambda: client.worker.client.status()["unfinished_bytes"] == 0)
        assert client.worker.count("messages") == 0

    def test_bytes_behind_the_announced_length_are_another_request(self, client: Client) -> None:
        with client.raw() as raw:
            raw.sendall(self.HEAD + b"Content-Length: 2\r\n\r\nhello")
            client.commit()
            answers = everything(raw)
        assert answers.count(b"HTTP/1.1 ") == 2
        assert b"HTTP/1.1 200 " in answers
        assert b"HTTP/1.1 400 " in answers
        assert client.worker.count("messages") == 1

    def test_requests_behind_one_another_are_answered_in_their_order(self, client: Client) -> None:
        with client.raw() as raw:
            raw.sendall(
                (self.HEAD + b"Content-Length: 2\r\n\r\nhi") + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"X"
            )
            client.commit()
            answers = everything(raw)
        assert answers.index(b'"committed"') < answers.index(b"curl")

    def test_tls_is_no_http(self, client: Client) -> None:
        with client.raw() as raw:
            raw.sendall(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03")
            assert b" 400 " in everything(raw)

    def test_a_client_that_goes_while_it_waits_disturbs_nobody(self, client: Client) -> None:
        with client.raw() as raw:
            raw.sendall(self.HEAD + b"Content-Length: 2\r\n\r\nhi")
            eventually(lambda: client.taken() == 1)
        waiting = client.later(b"{}")

        client.commit(messages=2)

        assert waiting.result(SECONDS).status == 200

    def test_a_client_may_wait_to_be_told_to_go_on(self, client: Client) -> None:
        with client.raw() as raw:
            raw.sendall(self.HEAD + b"Content-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
            assert raw.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
            raw.sendall(b"hi")
            client.commit()
            assert b"200 OK" in everything(raw)


def test_a_worker_that_leaves_tells_its_clients_to_send_again(client: Client) -> None:
    waiting = client.later(b"{}")
    with client.raw():
        client.worker.client.stop("a test")

        assert waiting.result(SECONDS).code == "http-send-again"
        client.worker.ended()


def test_a_body_of_a_hundred_megabytes_passes_within_the_budget(make_door: Make) -> None:
    client = make_door(memory_budget=512 << 20)
    line = b'{"order": 1, "text": "' + b"x" * 977 + b'"}'
    body = b"\n".join([line] * 100_000)
    waiting = client.later(body, Content_Type="application/x-ndjson")

    client.commit(messages=100_000)

    assert waiting.result(SECONDS).json["committed"] == 100_000
    eventually(lambda: client.worker.client.status()["memory_used"] == 0)


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
def test_curl_sends_a_file(client: Client, tmp_path: Path) -> None:
    (tmp_path / "orders.ndjson").write_bytes(b'{"order": 1}\n' * 1000)
    command = [str(CURL), "-sS", f"{client.url}/v1/streams/orders", "-H", f"Authorization: Bearer {COOKIE}"]
    command += ["-H", "Content-Type: application/x-ndjson", "--data-binary", f"@{tmp_path / 'orders.ndjson'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        client.commit()
        said, _ = running.communicate(timeout=SECONDS)

    assert json.loads(said)["committed"] == 1000


def test_the_door_is_off_unless_it_has_a_port(make_fleet: Callable[..., Fleet]) -> None:
    assert make_fleet().start().client.status()["door_list"] == []


def test_refused_requests_and_those_that_wait_are_shown(client: Client) -> None:
    for _ in range(2):
        assert client.post(b"[1]", Authorization="Bearer wrong", Wallaroo_Instance="shop-2").status == 401
    waiting = client.later(b"[1, 2]", Wallaroo_Instance="shop-1")
    eventually(lambda: client.worker.count("messages") == 2, "the worker holds the messages")

    shown = client.worker.client.inspect(10)

    (refused,) = shown["refusals"]
    assert (refused["kind"], refused["times"], refused["instance"]) == ("http-unauthorized", 2, "http/shop-2")
    assert shown["counts"]["door-refused:http-unauthorized"] == 2
    (found,) = shown["door_list"]
    assert found == {
        "door": "http", "address": client.url, "ports": [client.address[1]], "connections": found["connections"],
        "clients": 1, "waiting": 1, "waiting_by": {"http/shop-1": 1},
    }  # fmt: skip
    assert found["connections"] >= 1
    assert shown["door_ages"]["http"] >= 0

    client.commit("http/shop-1", messages=2)
    assert waiting.result(SECONDS).status == 200
    assert client.worker.client.inspect(10)["door_list"][0]["waiting"] == 0


def test_a_port_that_another_program_holds_ends_the_worker_with_the_name_of_its_option(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "FREE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        thread = make_fleet(http_port=holder.getsockname()[1]).thread()

        with pytest.raises(ConfigurationError, match=r"option http\.port: cannot listen on .* \[cannot-listen\]"):
            thread.alive(SECONDS)
