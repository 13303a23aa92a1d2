"""A connection to a Redis or a Redis Cluster, with time limits, retries and errors that say what to check.

Source: ``docs/decisions/redis-holds-nothing-durable.md``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

from wallaroo_spark.errors import ConfigurationError, RegistryError, one_line
from wallaroo_spark.options import resolve_secret

logger = one_line(logging.getLogger(__name__))

T = TypeVar("T")

# redis-py's own retries are off, because the retries of this module report their number in error messages.
NO_RETRY = Retry(NoBackoff(), 0)
_REFUSED = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
_TRANSIENT = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.RedisClusterException,
)
_OF_A_CLUSTER = "+cluster:"
_SCAN_COUNT = 1000
"""Keys that one ``SCAN`` step examines. A choice: it bounds one step's work inside Redis."""


class RedisConnection:
    """A pool of connections to one Redis, or to the nodes of one Redis Cluster. May be shared between threads.

    ``url`` begins with ``redis://``, ``rediss://`` (TLS; ``?ssl_ca_certs=FILE`` names an authority) or ``unix://``;
    ``env:NAME`` and ``file:PATH`` name a variable or a file that contains the URL. ``redis+cluster://`` and
    ``rediss+cluster://`` name any one node of a cluster; the other nodes are found through it. On a cluster, all keys
    of a command or script must have the same hash tag. ``attempts`` is the most attempts of a call, ``timeout`` the
    longest wait for the network in each attempt, in seconds. The constructor does not connect; it raises
    :class:`ConfigurationError` when the URL cannot be parsed.
    """

    def __init__(self, url: str, *, attempts: int, timeout: float) -> None:
        resolved = resolve_secret(url)
        settings = _settings(resolved, timeout)
        self._url = resolved.replace(_OF_A_CLUSTER, ":", 1)
        self._of_a_cluster = resolved.startswith(("redis+cluster:", "rediss+cluster:"))
        self._pool = _pool(self._url, settings)
        self._settings = settings
        self._cluster: RedisCluster | None = None
        self._making = threading.Lock()
        self._single = redis.Redis(connection_pool=self._pool)
        given = self._pool.connection_kwargs
        self.endpoint: str = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
        self._password: str = given.get("password") or ""
        self._attempts = attempts
        self._away = False
        """Whether the last attempt failed; an outage is logged once, however many calls fail in it."""
        self._retrying = Retrying(
            stop=stop_after_attempt(attempts),
            # A choice: a lost connection is tried again almost at once, and the random part keeps the workers that
            # lost theirs at the same moment from connecting at the same moment.
            wait=wait_exponential(multiplier=0.05, max=1.0) + wait_random(0, 0.1),
            retry=retry_if_exception(_is_transient),
            before_sleep=self._log,
            reraise=True,
        )

    def __repr__(self) -> str:
        return f"RedisConnection({self.endpoint!r})"

    @property
    def client(self) -> Any:
        """The redis-py client. To be read inside :meth:`call`, because the first read asks a cluster for its nodes."""
        if not self._of_a_cluster:
            return self._single
        with self._making:
            if self._cluster is None:
                self._cluster = RedisCluster.from_url(self._url, **self._settings)
            return self._cluster

    def clock(self, key: str) -> int:
        """Milliseconds since 1970 on the clock of the node that has ``key``. To be called inside :meth:`call`."""
        client = self.client
        seconds, microseconds = (
            client.execute_command("TIME", target_nodes=client.get_node_from_key(key))
            if self._of_a_cluster
            else client.time()
        )
        return int(seconds) * 1000 + int(microseconds) // 1000

    def call(self, action: str, command: Callable[[], T]) -> T:
        """Run ``command`` and return its result; run it again after a connection error or a time-out.

        ``action`` names the operation in error messages, as an infinitive without "to". Running the command twice must
        have the same effect as running it once. Raises :class:`RegistryError` when Redis cannot be reached, or refuses
        the login or the command.
        """
        try:
            found: T = self._retrying(command)
        except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
            # The cause is not chained: a server without AUTH repeats the password in its error message.
            raise RegistryError(
                self._explain(action, error), code="registry-away", endpoint=self.endpoint, attempted=action
            ) from None
        if self._away:
            self._away = False
            logger.info("Redis at %s answers again", self.endpoint)
        return found

    def parse(self, action: str, reader: Callable[[str], T], text: str, keys: str) -> T:
        """Parse a text that Redis returned with ``reader``; ``keys`` names its key, or the keys of its kind.

        Raises :class:`RegistryError` when ``reader`` fails.
        """
        try:
            return reader(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryError(
                f"Redis at {self.endpoint} sent an answer that cannot be used to {action}: {error!r}; "
                f"check that nothing else writes {keys}",
                code="registry-answer",
                endpoint=self.endpoint,
            ) from error

    def names_between(self, action: str, front: str, end: str) -> list[str]:
        """The names that stand between ``front`` and ``end`` in the keys of all receivers or topics, sorted."""
        keys = self.call(action, lambda: list(self.client.scan_iter(match=f"{front}*{end}", count=_SCAN_COUNT)))
        return sorted({str(key).removeprefix(front).removesuffix(end) for key in keys})

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        self._pool.disconnect()
        with self._making:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _explain(self, action: str, error: Exception) -> str:
        reason = self._without_password(error).rstrip(".")
        if isinstance(error, redis.exceptions.MovedError | redis.exceptions.AskError):
            return (
                f"Redis at {self.endpoint} could not {action}: it is a node of a Redis Cluster; write "
                "redis+cluster:// or rediss+cluster:// in the URL"
            )
        if isinstance(_origin(error), _REFUSED):
            return (
                f"Redis at {self.endpoint} refused the login to {action}: {reason}; "
                "check the user and password in option registry"
            )
        if _is_transient(error):
            return (
                f"Redis at {self.endpoint} cannot be reached to {action}, in {self._attempts} attempts: {reason}; "
                "check that Redis runs and that option registry names it"
            )
        return (
            f"Redis at {self.endpoint} refused to {action}: {reason}; check that it is Redis 6.0 or newer, "
            "that it is a primary, and the permissions of the URL's user"
        )

    def _without_password(self, error: BaseException | None) -> str:
        text = str(error) or type(error).__name__
        return text.replace(self._password, "***") if self._password else text

    def _log(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        level, self._away = logging.DEBUG if self._away else logging.WARNING, True
        logger.log(
            level,
            "Redis at %s: attempt %d of %d failed, and further failures are not logged until it answers: %s",
            self.endpoint,
            state.attempt_number,
            self._attempts,
            self._without_password(error),
        )


def _is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later. A refused login may not, although it is a ConnectionError."""
    return isinstance(error, _TRANSIENT) and not isinstance(_origin(error), _REFUSED)


def _origin(error: BaseException) -> BaseException:
    """The error of a cluster's node, because redis-py's own error only says that no node can be reached."""
    return (error.__cause__ or error) if isinstance(error, redis.exceptions.RedisClusterException) else error


def _settings(url: str, timeout: float) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "decode_responses": True,
        # No feature of RESP3 is needed, and every server and proxy supports RESP2.
        "protocol": 2,
        "socket_timeout": timeout,
        "retry": NO_RETRY,
    }
    if not url.startswith("unix:"):
        settings |= {"socket_connect_timeout": timeout, "socket_keepalive": True}
    if url.startswith("rediss"):
        settings["ssl_check_hostname"] = True
    return settings


def _pool(url: str, settings: dict[str, Any]) -> redis.ConnectionPool:
    try:
        pool = redis.ConnectionPool.from_url(url, **settings)
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError):
        # Neither the URL nor the parser's error is shown, because both may contain the password.
        raise ConfigurationError(
            "option registry: the URL cannot be read; expected redis://[[user]:password@]host:port/0, or rediss:// for "
            "TLS, with special characters of the password percent-encoded",
            code="url-invalid",
            option="registry",
        ) from None
    return pool
