"""The network between a sink's writer and a connector sink fails in every manner; every committed row is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sinks.server.serving import ServingSink
from tests.sinks.two_phase.memory import pieces
from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import SinkError, TransportError
from wallaroo_spark.sinks import Prepared, Transaction
from wallaroo_spark.sinks.connector_sink import ConnectorSink
from wallaroo_spark.testing import Proxy, Trouble
from wallaroo_spark.transport import parse_address

ROWS = [f"row {number} ".ljust(200, ".") for number in range(5000)]
WHOLE = "".join(f"{row}\n" for row in ROWS).encode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServingSink]:
    with ServingSink(tmp_path / "out") as serving:
        yield serving


@pytest.fixture
def proxy(server: ServingSink) -> Iterator[Proxy]:
    """Between the writer and the sink."""
    with Proxy(parse_address(server.address)) as between:
        yield between


def sink_to(proxy: Proxy, answer_timeout: float = 1.0, give_up_after: float = SECONDS) -> ConnectorSink:
    sink = ConnectorSink(
        proxy.address,
        name="orders",
        checkpoint="",
        connect_timeout=SECONDS,
        answer_timeout=answer_timeout,
        give_up_after=give_up_after,
    )
    sink.remember({"ends": {"0": {}}})
    return sink


def prepare(sink: ConnectorSink, attempts: int = 40) -> Prepared:
    """As Spark runs a task: again, when its connection fails in the middle of the rows."""
    for attempt in range(1, attempts + 1):
        try:
            return sink.prepare(Transaction.new(sink.name, 0, 0), pieces(ROWS))
        except TransportError:
            if attempt == attempts:
                raise
    raise AssertionError


def mend_at_the_next_connection(proxy: Proxy) -> None:
    """Existing connections stay half open; a new connection works."""
    before = proxy.connections

    def mend() -> None:
        eventually(lambda: proxy.connections > before)
        proxy.become(Trouble.NONE)

    threading.Thread(target=mend, daemon=True).start()


def test_a_half_open_connection_is_given_up_and_the_rows_are_sent_again(server: ServingSink, proxy: Proxy) -> None:
    proxy.become(Trouble.SLOW)
    sink = sink_to(proxy)
    found: list[Prepared] = []
    preparing = threading.Thread(target=lambda: found.append(prepare(sink)), daemon=True)
    preparing.start()
    eventually(lambda: proxy.connections >= 1)
    proxy.become(Trouble.SWALLOW)
    eventually(lambda: proxy.swallowed > 0)
    mend_at_the_next_connection(proxy)
    preparing.join(SECONDS)
    sink.commit(0, found)
    assert server.shown() == {"orders-0": WHOLE}


def test_a_decision_that_a_half_open_connection_swallows_is_told_again(server: ServingSink, proxy: Proxy) -> None:
    sink = sink_to(proxy)
    one = prepare(sink)
    proxy.become(Trouble.SWALLOW)
    mend_at_the_next_connection(proxy)
    sink.commit(0, [one])
    assert server.shown() == {"orders-0": WHOLE}


def test_a_sink_behind_a_black_hole_fails_the_writer_in_time(server: ServingSink, proxy: Proxy) -> None:
    proxy.become(Trouble.SWALLOW)
    with pytest.raises(SinkError, match=r"could not be reached for 1 s: .* did not answer orders-0 within 0\.5 s"):
        prepare(sink_to(proxy, answer_timeout=0.5, give_up_after=1.0))
    assert server.shown() == {}


@pytest.mark.parametrize("end", [Proxy.cut, Proxy.reset], ids=["cut", "reset"])
def test_a_connection_that_is_ended_is_made_again(
    server: ServingSink, proxy: Proxy, end: Callable[[Proxy], None]
) -> None:
    proxy.become(Trouble.SLOW)
    sink = sink_to(proxy, answer_timeout=SECONDS)
    found: list[Prepared] = []
    preparing = threading.Thread(target=lambda: found.append(prepare(sink)), daemon=True)
    preparing.start()
    eventually(lambda: proxy.connections >= 1)
    proxy.become(Trouble.NONE)
    end(proxy)
    preparing.join(SECONDS)
    sink.commit(0, found)
    assert server.shown() == {"orders-0": WHOLE}


def test_a_slow_way_is_slow_and_nothing_else(server: ServingSink, proxy: Proxy) -> None:
    proxy.become(Trouble.SLOW)
    sink = sink_to(proxy, answer_timeout=SECONDS)
    sink.commit(0, [prepare(sink)])
    assert server.shown() == {"orders-0": WHOLE}
