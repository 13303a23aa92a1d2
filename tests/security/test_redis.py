"""Access to Redis, and the outputs that others can read: no status and no repr contains a secret."""

from __future__ import annotations

import socket
import ssl
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from tests.pems import Pems
from tests.registry.tls import tls_in_front_of
from tests.security.keys import GUESS, sealing, secrets_of, told
from tests.waiting import SECONDS
from tests.worker.running import COOKIE, TOKEN, Fleet, Running
from wallaroo_spark.errors import RegistryError
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.client import Trust
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import Hello
from wallaroo_spark.protocol.sessions.worker_session import WorkerSession
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.worker.service import WorkerSetup


class TestRedis:
    COMMANDS: ClassVar = ["PING", "KEYS *", "INFO", "CONFIG GET requirepass", "MONITOR", "SUBSCRIBE a", "FLUSHALL"]

    @pytest.mark.parametrize("login", ["", f"AUTH {GUESS}", f"AUTH default {GUESS}"], ids=["none", "wrong", "default"])
    def test_no_command_is_run_without_the_password(
        self, redis_server: EmbeddedRedis, plain: Running, plain_fleet: Fleet, password: str, login: str
    ) -> None:
        key = f"wallaroo:{{{plain_fleet.receiver}}}:leases"
        for command in (*self.COMMANDS, f"HGETALL {key}", f"DEL {key}"):
            with socket.create_connection(("127.0.0.1", urlsplit(redis_server.url).port or 0), SECONDS) as bare:
                lines = bare.makefile("rwb")
                for line in filter(None, (login, command)):
                    lines.write(f"{line}\r\n".encode())
                    lines.flush()
                    said = lines.readline().decode()
                    assert said.startswith(("-NOAUTH", "-WRONGPASS", "-ERR invalid password"))
                    assert password not in said
        assert plain.registry.leases()[0] == plain.lease

    @pytest.mark.parametrize("wrong", ["", f":{GUESS}@"])
    def test_the_registry_is_refused_and_says_no_password(
        self, redis_server: EmbeddedRedis, wrong: str, password: str
    ) -> None:
        url = f"redis://{wrong}{redis_server.url.rpartition('@')[2]}"
        with Registry(url, "orders", attempts=1) as registry, pytest.raises(RegistryError) as caught:
            registry.fleet()
        assert "refused the login to read the fleet" in str(caught.value)
        assert [secret for secret in (password, GUESS) if secret in told(caught.value)] == []

    def test_over_tls_a_stranger_s_authority_and_plain_text_get_nowhere(
        self, redis_server: EmbeddedRedis, pems: Pems, password: str
    ) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pems.server, pems.server_key)
        with tls_in_front_of(redis_server, context) as port:
            there = f":{password}@localhost:{port}/0"
            with Registry(f"rediss://{there}?ssl_ca_certs={pems.ca}", "orders") as registry:
                registry.ping()
            for url in (f"rediss://{there}?ssl_ca_certs={pems.other_ca}", f"rediss://{there}", f"redis://{there}"):
                with Registry(url, "orders", attempts=1) as registry, pytest.raises(RegistryError) as caught:
                    registry.ping()
                assert password not in told(caught.value)


class TestWhatIsShown:
    def test_no_status_holds_a_secret(self, plain: Running, sealed: Running, mutual: Running, password: str) -> None:
        for worker in (plain, sealed, mutual):
            said = [worker.client.status(), worker.client.available(-1, 0), worker.client.plan(PlanQuestion())]
            assert [secret for secret in secrets_of(password) if secret in repr(said)] == []

    def test_no_repr_holds_a_secret(self, plain: Running, redis_server: EmbeddedRedis, pems: Pems) -> None:
        secrets: dict[str, Any] = {"cookie": COOKIE, "token": TOKEN, "registry": redis_server.url}
        options = Options(receiver="orders", **secrets)
        receiver = Receiver(None, "orders", **secrets)
        things = [options, receiver, receiver.options, receiver.status(), WorkerSetup(options, 0, 1, TOKEN)]
        things += [plain.client, plain.registry, plain.lease, redis_server, Trust.of(sealing(pems))]
        things += [Hello("0.0.1", COOKIE.encode(), "", "shop-1"), WorkerSession(version="", cookie=COOKIE.encode())]
        shown = [f"{thing!r} {thing}" for thing in things]

        assert [text for text in shown if any(secret in text for secret in secrets.values())] == []
        assert [text for text in shown if "CERTIFICATE" in text] == []
