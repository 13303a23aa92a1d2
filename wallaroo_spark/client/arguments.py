"""The settings of a client and the arguments of its calls, checked before anything is sent."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client.events import Event, as_event
from wallaroo_spark.connector.arguments import check_aware, integer_of, shown, timeout_of, utf8_of, wrong_type
from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError, ConfigurationError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.transport.address import format_address, parse_addresses

_PATH = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_U32 = (1 << 32) - 1
LARGEST_OFFSET = (1 << 63) - 1
_LONGEST_MILLISECONDS = 1 << 62
"""A longer duration counts as this one, which no gateway waits for and every message has room for."""
_DURABILITIES = {"committed": pb.COMMITTED, "received": pb.RECEIVED}
_LOCATIONS = {"latest": pb.StartPoint.LATEST, "beginning": pb.StartPoint.BEGINNING}


def path_of(path: Any, kind: str) -> str:
    """The name of an object with its namespace. Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError`."""
    return _matching(path, kind, _PATH, f"namespace/name, for example shop/orders, is the name of a {kind}")


def name_of(name: Any, kind: str) -> str:
    """The name of a group or a stage. Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError`."""
    return _matching(name, kind, _NAME, "use 1 to 100 letters, digits, '-', '_' and '.'")


def _matching(text: Any, kind: str, pattern: re.Pattern[str], way_out: str) -> str:
    if not isinstance(text, str):
        raise wrong_type(f"the name of a {kind} is a str", text, kind)
    if not pattern.fullmatch(text):
        raise ArgumentValueError(f"{kind} {shown(text)}: {way_out}", code="name-invalid", argument=kind)
    return text


def events_of(events: Iterable[Any]) -> tuple[Event, ...]:
    """One or more events. Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError`."""
    found = tuple(as_event(event) for event in events)
    if not found:
        raise ArgumentValueError("there is no event to publish; give at least one", code="event-missing")
    return found


def partition_of_call(partition: Any) -> int | None:
    """The number of a partition; None: each event is given one."""
    return None if partition is None else limited(partition, "partition", 0)


def iterable_of(events: Any, *, blocking: bool) -> None:
    """Raise :class:`ArgumentTypeError` for events that cannot be iterated over."""
    if isinstance(events, Iterable) or (not blocking and isinstance(events, AsyncIterable)):
        return
    raise wrong_type("events is an iterable of Event", events, "events", "write a list or a generator of events")


def key_of(key: Any) -> str | None:
    """The key that events without one of their own get."""
    if key is not None and not isinstance(key, str):
        raise wrong_type("key is a str", key, "key", "write it as a str")
    if key is not None:
        utf8_of(key, "key")
    return key


def _outside(name: str, problem: str) -> ArgumentValueError:
    return ArgumentValueError(f"{name} is {problem}", code="option-out-of-range", argument=name)


def limited(value: Any, name: str, least: int, most: int = _U32) -> int:
    """An integer from ``least`` to ``most``."""
    number = integer_of(value, name)
    if not least <= number <= most:
        raise _outside(name, f"{number}; give {least} or more, at most {most}")
    return number


def durability_of(durability: Any) -> Any:
    """The message's value of a durability."""
    return _chosen(durability, "durability", _DURABILITIES)


def start_of(start: Any) -> pb.StartPoint:
    """Where a new group begins: ``latest``, ``beginning`` or an offset."""
    if isinstance(start, int) and not isinstance(start, bool):
        if not 0 <= start <= LARGEST_OFFSET:
            raise _outside("start", f"the offset {start}; offsets begin at 1, and have 63 bits")
        return pb.StartPoint(location=pb.StartPoint.OFFSET, offset=start)
    return pb.StartPoint(location=_chosen(start, "start", _LOCATIONS, " or an offset"))


def _chosen(value: Any, name: str, choices: dict[str, Any], more: str = "") -> Any:
    if not isinstance(value, str) or value not in choices:
        kind = ArgumentValueError if isinstance(value, str) else ArgumentTypeError
        raise kind(
            f"{name} is {shown(value)}; give {' or '.join(map(repr, choices))}{more}",
            code="option-out-of-range",
            argument=name,
        )
    return choices[value]


def not_before_of(delay: Any) -> int:
    """When delayed events are written, in milliseconds since 1970; 0: at once.

    ``delay`` is a number of seconds, a timedelta, an aware datetime, or None.
    """
    if delay is None:
        return 0
    if isinstance(delay, datetime):
        check_aware(delay, "delay", "delay", "or seconds")
        return max(1, round(delay.timestamp() * 1000))
    return max(1, round(time.time() * 1000) + milliseconds_of(delay, "delay"))


def milliseconds_of(seconds: Any, name: str) -> int:
    """A duration in milliseconds: seconds or a timedelta."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    found = timeout_of(seconds, name)
    if found is None or found == float("inf"):
        raise _outside(name, f"{seconds}; give a number of seconds")
    return round(min(found * 1000, _LONGEST_MILLISECONDS))


def request_maker(
    stream: Any, partition: Any, durability: Any, delay: Any
) -> Callable[[Sequence[Any]], pb.PublishRequest]:
    """A function that makes requests of the messages of events. Raises :class:`ArgumentTypeError` and
    :class:`ArgumentValueError`."""
    path = path_of(stream, "stream")
    given = {"partition": partition_of_call(partition), "durability": durability_of(durability)}
    not_before_of(delay)
    return lambda messages: pb.PublishRequest(stream=path, events=messages, not_before=not_before_of(delay), **given)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The settings of :class:`Client` and :class:`AsyncClient`.

    Raises :class:`ConfigurationError` for settings that cannot work.
    """

    address: str | Sequence[str] = field(default="", kw_only=False, metadata=row(Kind.NAMES))
    """Addresses of one or more gateways, host:port, separated by commas or as a list; any will do."""
    registry: str | None = setting(None, Kind.TEXT, secret=True)
    """Redis URL where the gateways' addresses are looked up; also env:NAME or file:PATH. Give this with
    application, or address."""
    application: str = setting("", Kind.TEXT)
    """Name of the application, with registry."""
    token: str = setting("", Kind.TEXT, secret=True)
    """Token of each request; also env:NAME or file:PATH."""
    source: str = setting("urn:wallaroo-spark:client", Kind.TEXT)
    """The source of events that have none. Events are known by source and id, so programs that give ids of their
    own have sources of their own."""
    tls: bool = setting(False, Kind.FLAG)
    """Use TLS, with the authorities that gRPC trusts."""
    ca: str = setting("", Kind.TEXT)
    """PEM file of the authority of the gateways' certificates; turns TLS on."""
    certificate: str = setting("", Kind.TEXT)
    """PEM file of the certificate to present; turns TLS on."""
    key: str = setting("", Kind.TEXT)
    """PEM file with the key of the certificate."""
    connect_timeout: float = setting(10.0, Kind.SECONDS, minimum=0.001)
    """Longest time to connect to one gateway."""
    timeout: float = setting(60.0, Kind.SECONDS, minimum=0.001)
    """Longest wait for the answer to a request, with all attempts. An answer waits for the commit of a batch."""
    finish_timeout: float = setting(30.0, Kind.SECONDS, minimum=0)
    """Longest wait at the end for functions of stages that still run."""
    retry: Backoff | None = setting(None, Kind.OBJECT, of=(Backoff, "a Backoff; write Backoff(initial=1), for example"))
    """Delays between attempts; None: Backoff()."""

    def __post_init__(self) -> None:
        check_all(self)
        if bool(self.address) == bool(self.registry):
            problem = "both address and registry are" if self.address else "neither address nor registry is"
            raise ConfigurationError(
                f"{problem} given; give a gateway's address (host:port, comma-separated), or the registry's URL and "
                "the application's name",
                code="option-missing",
            )
        if bool(self.registry) != bool(self.application):
            raise ConfigurationError(
                "registry and application belong together; give the registry's URL and the application's name",
                code="option-missing",
                option="application",
            )
        if not self.source:
            raise ConfigurationError(
                "source is empty, and every event has one; give a URI such as /shop/web", code="option-missing"
            )
        utf8_of(self.source, "source")
        if self.key and not self.certificate:
            raise ConfigurationError(
                f"TLS key {self.key} has no certificate; give the certificate's file too", code="tls-files"
            )
        _ = self.addresses

    @property
    def addresses(self) -> list[str]:
        """``address`` as a list; empty with a registry."""
        return [format_address(*one) for one in parse_addresses(self.address)] if self.address else []

    @property
    def backoff(self) -> Backoff:
        """``retry``, or its default."""
        return self.retry or Backoff()

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.tls or bool(self.ca or self.certificate)

    def resolved(self) -> ClientSettings:
        """A copy with the secrets resolved from ``env:`` or ``file:``.

        Raises :class:`ConfigurationError`, also for a token that no request can have with it.
        """
        registry = None if self.registry is None else resolve_secret(self.registry)
        token = resolve_secret(self.token)
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError(
                "the token has a character that is not printable ASCII; give the text that wallaroo-spark token create "
                "has printed",
                code="invalid-text",
                option="token",
            )
        return dataclasses.replace(self, token=token, registry=registry)
