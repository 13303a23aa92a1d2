"""What the verbs of durable streams say while they wait for a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator

import pytest

from tests.client.conftest import gateway as gateway
from tests.client.fake_gateway import FakeGateway
from tests.waiting import SECONDS, until
from wallaroo_spark.client import AsyncClient, Event, publishing

PROGRAM = "from wallaroo_spark.cli.entry import main; main()"


@contextlib.contextmanager
def address(listens: bool) -> Iterator[str]:
    """An address that refuses connections, or accepts them and says nothing."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        if listens:
            one.listen()
        yield f"127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("verb", [["publish", "shop/orders", "--type", "t", "--data", "1"], ["consume", "shop/orders"]])
async def test_a_verb_says_at_once_that_no_gateway_is_there(verb: list[str], listens: bool) -> None:
    with address(listens) as given:
        command = [sys.executable, "-c", PROGRAM, *verb, "--gateway", given]
        program = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert program.stderr is not None
        try:
            async with asyncio.timeout(SECONDS):
                while b"no gateway is connected" not in (line := await program.stderr.readline()):
                    assert line, "it has ended without a word"
            assert given.encode() in line
            # It goes on trying.
            assert program.returncode is None
        finally:
            program.kill()
            await program.wait()


async def test_a_bulk_publish_says_that_no_answer_comes(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "_WORD_SECONDS", 0.1)
    gateway.silent = True
    async with AsyncClient(gateway.address) as client:
        publishing_it = asyncio.ensure_future(anext(client.publish_many("shop/orders", [Event("a", 1)])))
        await until(lambda: "has not answered for 0.1 seconds" in caplog.text)
        publishing_it.cancel()
        await asyncio.wait([publishing_it])
    assert gateway.address in caplog.text
