"""The sink ``redis``: one script appends all rows of a batch to a stream or list, and records the batch's number.

Tasks stage their rows beside the checkpoint, so rows that Redis loses before the commit are not lost. Commit sends the
rows to a temporary key. Then a script, which Redis runs atomically, compares the number of the last batch, moves the
rows and records the new number. Rows that Redis loses after that are lost: the sink is as durable as Redis is.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.exceptions import MovedError
from redis.retry import Retry

from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import RedisSettings
from wallaroo_spark.sinks.stores.staged_rows import StagedSink, as_bytes, check_newer, checked_columns
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed

# KEYS: the target (a stream or list), the sink's mark, the temporary list of rows.
# ARGV: the sink's identity, the batch, "stream" or "list", the number of rows.
# A row of a stream has names and values, each after its length. The script returns the number of rows that it moved, or
# -1 if the target has the batch already. Redis does not undo the writes of a script that fails, so the script checks
# everything that can fail before its first write.
_MOVE = """
local mark = redis.call('HMGET', KEYS[2], 'identity', 'batch')
if mark[1] == ARGV[1] and tonumber(mark[2]) >= tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[3])
  return -1
end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= ARGV[3] then
  return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is a ' .. kind)
end
local rows = tonumber(ARGV[4])
if redis.call('LLEN', KEYS[3]) ~= rows then return redis.error_reply('GONE rows on their way') end
for first = 0, rows - 1, 1000 do
  local lot = redis.call('LRANGE', KEYS[3], first, first + 999)
  if ARGV[3] == 'list' then
    redis.call('RPUSH', KEYS[1], unpack(lot))
  else
    for _, row in ipairs(lot) do
      local fields, at = {}, 1
      while at <= #row do fields[#fields + 1], at = struct.unpack('>I4c0', row, at) end
      redis.call('XADD', KEYS[1], '*', unpack(fields))
    end
  end
end
redis.call('HSET', KEYS[2], 'identity', ARGV[1], 'batch', ARGV[2])
redis.call('DEL', KEYS[3])
return rows
"""

_LOT = 2_000
"""Number of rows that are sent to Redis in one command. A choice that bounds the memory of a command."""
_FORGOTTEN_SECONDS = 3600
"""Time after which Redis deletes a temporary key. A choice: much longer than a commit takes."""
_MOST_COLUMNS = 1_000
"""The most columns of a row, because Lua's ``unpack`` passes only a few thousand values to a command."""

T = TypeVar("T")


@function_takes_settings(RedisSettings)
def redis(settings: RedisSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to a Redis stream or list, as :class:`RedisSink`."""
    return transactional(RedisSink(**vars(settings)), checkpoint=settings.checkpoint)


class RedisSink(StagedSink):
    """Appends each row as an entry to a stream (its columns are the fields, nulls are left out), or each row's column
    ``value`` to a list.

    Raises :class:`ConfigurationError` for settings that cannot work; methods raise :class:`SinkError`.
    """

    @takes_settings(RedisSettings)
    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings.name, settings.checkpoint)
        self._url, self._timeout = settings.url, settings.timeout
        self._target: str = settings.stream or settings.list or ""
        self._kind = "stream" if settings.stream else "list"
        self._mark = f"{_same_slot(self._target)}:wallaroo:{settings.name}"

    def __repr__(self) -> str:
        return f"RedisSink({self._kind}={self._target!r}, name={self.name!r})"

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Stage the rows beside the checkpoint, in the bytes that Redis will get, after checking the target's type."""
        self._call(f"tell the type of {self._target}", self._check)
        return self._stage.write(transaction, map(self._encode, rows))

    @contextlib.contextmanager
    def pre_commit(self, batch: int, prepared: Sequence[Prepared]) -> Iterator[None]:
        """Refuse a batch that the target has already, which a commit would pass over."""
        if any(one.rows for one in prepared):
            check_newer(f"sink {self.name}: {self._target}", self._call("tell its newest batch", self._newest), batch)
        yield

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Append all rows of the batch in one step, unless the target has the batch already."""
        rows = sum(one.rows for one in prepared)
        if rows:
            self._call(f"take batch {batch}", lambda client: self._append(client, batch, prepared, rows))
        self._stage.clear(batch)

    def _check(self, client: Redis) -> None:
        found = client.type(self._target)
        found = found.decode() if isinstance(found, bytes) else str(found)
        if found not in ("none", self._kind):
            raise SinkError(
                f"sink {self.name}: the key {self._target} is a {found} and not a {self._kind}; give another key",
                code="sink-target",
                key=self._target,
                type=found,
            )

    def _encode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = rows.schema.names
        where = f"sink {self.name}"
        if self._kind == "list":
            checked_columns(names, ["value"], ["value"], where)
        elif not 0 < len(names) <= _MOST_COLUMNS or len(set(names)) < len(names):
            raise SinkError(
                f"{where}: the rows have {len(names)} columns with {len(set(names))} different names; an entry of a "
                f"stream takes 1 to {_MOST_COLUMNS} columns, each with a name of its own: select and rename them",
                code="sink-columns",
                columns=names,
            )
        columns = [as_bytes(column, name, where) for name, column in zip(names, rows.columns, strict=True)]
        if not pc.all(reduce(pc.or_, (column.is_valid() for column in columns))).as_py():
            problem = "column value is null" if self._kind == "list" else "every column is null"
            raise SinkError(
                f"{where}: in one row {problem}, and Redis has no null; filter such rows out", code="sink-columns"
            )
        return pa.record_batch(columns, names=names)

    def _append(self, client: Redis, batch: int, prepared: Sequence[Prepared], rows: int) -> None:
        carried = f"{self._mark}:{batch}:{uuid.uuid4().hex}"
        # This check only saves sending the rows; the check inside the script decides.
        if self._newest(client) >= batch:
            return
        packed = self._packed(prepared)
        while lot := [*islice(packed, _LOT)]:
            client.rpush(carried, *lot)
            client.expire(carried, _FORGOTTEN_SECONDS)
        passed(SinkStep.HALF_COMMITTED)
        identity = self._stage.identity()
        client.eval(_MOVE, 3, self._target, self._mark, carried, identity, str(batch), self._kind, str(rows))

    def _newest(self, client: Redis) -> int:
        """The newest batch of this checkpoint in the target; -1 without one."""
        identity, batch = client.hmget(self._mark, ["identity", "batch"])
        return int(batch) if batch is not None and identity == self._stage.identity().encode() else -1

    def _packed(self, prepared: Sequence[Prepared]) -> Iterator[bytes]:
        """The rows, each as the bytes that the script reads."""
        for piece in self._stage.read(prepared):
            if self._kind == "list":
                yield from piece.column("value").to_pylist()
                continue
            names = [_with_length(name.encode()) for name in piece.schema.names]
            for row in zip(*(column.to_pylist() for column in piece.columns), strict=True):
                given = zip(names, row, strict=True)
                yield b"".join(name + _with_length(value) for name, value in given if value is not None)

    def _call(self, action: str, command: Callable[[Redis], T]) -> T:
        try:
            settings: dict[str, Any] = {"socket_timeout": self._timeout, "retry": Retry(NoBackoff(), 0), "protocol": 2}
            url = resolve_secret(self._url)
            if url.startswith("rediss:"):
                settings["ssl_check_hostname"] = True
            client = Redis.from_url(url, **settings)
        except ValueError:
            # The parser's message may contain the password.
            raise ConfigurationError(
                f"sink {self.name}: the URL cannot be read; expected redis://[[user]:password@]host:port/0, or "
                "rediss:// for TLS, with special characters of the password percent-encoded",
                code="url-invalid",
            ) from None
        with contextlib.closing(client):
            try:
                return command(client)
            except MovedError as error:
                raise SinkError(
                    f"sink {self.name}: could not {action}: this Redis is a node of a cluster, and this sink writes to "
                    "a single Redis; give the URL of one",
                    code="sink-target",
                    key=self._target,
                ) from error
            except RedisError as error:
                given = client.connection_pool.connection_kwargs
                reason, password = str(error) or type(error).__name__, given.get("password")
                reason = reason.replace(password, "***") if password else reason
                endpoint = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
                # The cause is not chained: a server that does not know AUTH answers with the password.
                raise SinkError(
                    f"sink {self.name}: Redis at {endpoint} could not {action}: {reason}; check that it runs, is a "
                    "primary of version 6.2 or newer with room left, and lets this user run scripts",
                    code="sink-write-failed",
                    endpoint=endpoint,
                ) from None


def _same_slot(key: str) -> str:
    """The hash tag of a key, in braces. In a Redis Cluster, keys with the same hash tag are on the same node."""
    opened = key.find("{")
    closed = key.find("}", opened + 1)
    return "{" + (key[opened + 1 : closed] if opened >= 0 and closed > opened + 1 else key) + "}"


def _with_length(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
