"""Wrong arguments: each is refused before anything is opened or sent, by name, with its value and the way out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.connector.scripted_worker import ScriptedWorker
from tests.connector.support import connector
from wallaroo_spark.connector import BlockingConnector, Connector, Lines, Records, Stream
from wallaroo_spark.errors import ConfigurationError, LocalProtocolError


def records(items: list[Any]) -> Records:
    return Records("a", lambda: items)


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"instance": 7}, TypeError, "setting instance: 7 is not a str; write '7'"),
        ({"instance": b"x"}, TypeError, r"setting instance: b'x' is not a str; decode it"),
        ({"instance": None}, TypeError, "setting instance: None is not a str"),
        ({"instance": ""}, ValueError, "instance '' has 0 bytes; give a name of 1 to 255 bytes"),
        ({"instance": "\ud800"}, ValueError, "instance .* has a lone surrogate"),
        ({"program": 7}, TypeError, "setting program: 7 is not a str"),
        ({"program": None}, TypeError, "setting program: None is not a str"),
        ({"cookie": 7}, TypeError, r"setting cookie: a value of type int is not a str \[argument-type\]$"),
        ({"workers": 7100}, TypeError, "setting workers: 7100 is not a str or a list of str"),
        ({"workers": ("a", 7100)}, TypeError, r"setting workers: 7100 in \('a', 7100\) is not a str"),
        ({"workers": "a"}, ConfigurationError, "address 'a' has no port; write host:port"),
        ({"workers": "", "registry": "redis:6379"}, ValueError, "setting registry: .* write redis://"),
        ({"retry": 3}, TypeError, r"setting retry: 3 is not a Backoff; write Backoff\(attempts=3\)"),
        ({"tls": True}, TypeError, "setting tls: True is not a SSLContext; give ssl.create_default_context"),
        ({"drain_timeout": "60"}, TypeError, "drain_timeout: '60' is not a number .seconds.; write 60 without quotes"),
        ({"drain_timeout": timedelta(minutes=2)}, TypeError, "drain_timeout: .* is not a number .seconds.; write 120"),
        ({"drain_timeout": True}, TypeError, "setting drain_timeout: True is not a number"),
        ({"max_unacknowledged": "64m"}, TypeError, "max_unacknowledged: '64m' is not .* such as 64 << 20 for 64 MiB"),
        (
            {"max_unacknowledged": 1e6},
            TypeError,
            r"max_unacknowledged: 1000000.0 is not an int .*; write 1000000 \[argument-type\]$",
        ),
        ({"revision": "v9"}, ValueError, "setting revision: 'v9' is not one of draft-le, draft-be, v3"),
        ({"wrokers": "a:1"}, TypeError, r"Connector\(\) has no setting 'wrokers'; did you mean workers\?"),
    ],
)
@pytest.mark.parametrize("form", [Connector, BlockingConnector])
def test_a_wrong_setting_is_refused_and_no_thread_is_started(
    form: Callable[..., Any], given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    before = threading.enumerate()

    with pytest.raises(kind, match=said):
        form(**{"program": "orders", "instance": "x", "workers": "127.0.0.1:1", **given})

    assert set(threading.enumerate()) <= set(before)


@pytest.mark.parametrize(("args", "said"), [(("orders",), "'instance'"), (("orders", "shop"), "too many positional")])
def test_a_missing_setting_is_named_with_its_meaning(args: tuple[str, ...], said: str) -> None:
    with pytest.raises(TypeError, match=rf"^Connector\(\): .*{said}.*it needs instance=… \(Name under which"):
        Connector(*args, workers="a:1")  # type: ignore[call-arg]  # what is tried


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"name": 7}, TypeError, "a stream name is a str, and this one is int: 7"),
        ({"name": b"a"}, TypeError, "a stream name is a str, and this one is bytes: b'a'; decode it"),
        ({"name": "\ud800"}, ValueError, "stream name .* has a lone surrogate"),
        ({"id": "7"}, TypeError, r"a stream id is an integer, and this one is str: '7'; convert it.*int\('7'\)"),
        ({"id": 1.5}, TypeError, "a stream id is an integer, and this one is float: 1.5"),
        ({"id": True}, TypeError, "a stream id is an integer, and this one is bool: True"),
        ({"id": -1}, ValueError, "stream id -1 is not an unsigned 64-bit integer"),
        ({"reference": "7"}, TypeError, "a reference is an integer, and this one is str: '7'"),
        ({"reference": -7}, ValueError, "reference -7 is not an unsigned 64-bit integer"),
    ],
)
async def test_a_wrong_argument_of_open_is_refused_and_the_stream_can_still_be_opened(
    given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    async with ScriptedWorker() as worker, connector(worker) as sender:
        with pytest.raises(kind, match=said) as caught:
            await sender.open(**{"name": "a", **given})
        assert isinstance(caught.value, LocalProtocolError)
        await (await sender.open("a")).send(b"x")


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda s: s.send("x"), TypeError, r"a payload is bytes, and this one is str: 'x'; encode it.*\.encode\(\)"),
        (lambda s: s.send({"a": 1}), TypeError, "a payload is bytes, and this one is dict.*json.dumps"),
        (lambda s: s.send(None), TypeError, "a payload is bytes, and this one is NoneType.*send_boundary"),
        (lambda s: s.send(b"x", id="7"), TypeError, "a message id is an integer, and this one is str: '7'"),
        (lambda s: s.send(b"x", id=1.5), TypeError, "a message id is an integer, and this one is float: 1.5"),
        (lambda s: s.send(b"x", id=-1), LocalProtocolError, "message id -1 is not "),
        (lambda s: s.send(b"x", key="k"), TypeError, "a key is bytes, and this one is str: 'k'"),
        (lambda s: s.send(b"x", event_time="2026"), TypeError, "an event time is an integer or an aware datetime"),
        (lambda s: s.send(b"x", event_time=1.5), TypeError, "an event time is an integer, and this one is float"),
        (lambda s: s.send(b"x", event_time=date(2026, 1, 1)), TypeError, "a datetime with a time zone"),
        (lambda s: s.send(b"x", event_time=datetime(2026, 1, 1)), ValueError, "has no time zone.*tzinfo=UTC"),
        (lambda s: s.send_many("abc"), TypeError, "send_many takes an iterable of payloads, and this is a single one"),
        (lambda s: s.send_many(None), TypeError, "payloads is an iterable with one item for each message"),
        (lambda s: s.send_many([b"x"], 7), TypeError, "ids is an iterable with one item for each message.*int: 7"),
        (lambda s: s.send_many([b"x"], keys=b"7"), TypeError, "keys is an iterable .*bytes: b'7'"),
        (lambda s: s.send_boundary("7"), TypeError, "a message id is an integer, and this one is str: '7'"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "behind another"])
async def test_a_wrong_argument_of_a_message_is_refused_and_the_stream_goes_on(
    call: Callable[[Stream], Any], kind: type[Exception], said: str, first: bool
) -> None:
    async with ScriptedWorker() as worker, connector(worker) as sender:
        stream = await sender.open("a")
        if not first:
            await stream.send(b"before", id=5)
        with pytest.raises(kind, match=said) as caught:
            await call(stream)
        assert isinstance(caught.value, LocalProtocolError)
        await stream.send(b"after", id=9, event_time=datetime(2026, 1, 1, tzinfo=UTC))
        await sender.drain()
        assert worker.only.payloads == ([] if first else [b"before"]) + [b"after"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.feed("orders.txt"), r"feed takes a source, and this one is str: .*feed Lines\('orders.txt'\)"),
        (lambda c: c.feed([(1, b"x")]), r"feed takes a source, and this one is list.*Records\(name, make\)"),
        (lambda c: c.feed(Records("a", list), progress=3), "progress is a function, and this one is int: 3"),
        (lambda c: c.feed(records([b"x"])), "a source returns Record.*and this is bytes: b'x'"),
        (lambda c: c.feed(records([("1", b"x")])), "a message id is an integer, and this one is str: '1'"),
        (lambda c: c.feed(records([(1, "x")])), "a payload is bytes, and this one is str: 'x'"),
        (lambda c: c.drain("5"), "timeout is a number of seconds or None, and this one is str: '5'"),
    ],
)
async def test_a_wrong_argument_of_the_connector_is_refused(call: Callable[[Connector], Any], said: str) -> None:
    async with ScriptedWorker() as worker, connector(worker) as sender:
        with pytest.raises(TypeError, match=said):
            await call(sender)
        with pytest.raises(ValueError, match="timeout is -1 seconds; give 0 or more, or None"):
            await sender.drain(-1)


def test_a_wrong_source_is_refused_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="path is a str or a path, and this one is int: 3"):
        Lines(3)  # type: ignore[arg-type]  # what is tried
    with pytest.raises(TypeError, match=r"make is a function, and this one is list: \[\]"):
        Records("a", [])  # type: ignore[arg-type]  # what is tried
    assert Lines(Path("a")).name == "a"
