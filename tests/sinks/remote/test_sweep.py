"""The crash-point sweep of connector sinks: drivers, tasks and the server die at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.server.serving import shown
from tests.sinks.sweep import CASES, IN_THE_SERVER, Case, Lives, Subject, sweep
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.sinks.connector_sink import ConnectorSink
from wallaroo_spark.sinks.server.output_directory import OutputDirectory
from wallaroo_spark.sinks.server.sink_server import SinkServer
from wallaroo_spark.transport import serve

ME = "tests.sinks.remote.test_sweep"
SERVER_CASES = [pytest.param(Case(step, "server"), id=step.name) for step in IN_THE_SERVER]


def sink_of(name: str, port: int) -> ConnectorSink:
    """The sink, in every process."""
    return ConnectorSink(f"127.0.0.1:{port}", name=name, checkpoint="", give_up_after=30.0)


def serve_until_killed(to: str, port: int) -> None:
    """The server, with a log that is written anew all the time."""

    async def forever() -> None:
        await serve(SinkServer(OutputDirectory(to, log_lines=3)), "127.0.0.1", port)
        await asyncio.Event().wait()

    asyncio.run(forever())


class Stage:
    """A server, and the processes that send to it."""

    def __init__(self, folder: Path, lives: Lives) -> None:
        self.lives = lives
        self.orders = folder / "server orders"
        self.orders.mkdir(parents=True)
        to, port = folder / "out", lasting_port()
        lives.serve(f"{ME}:serve_until_killed", self.orders, to=str(to), port=port)
        self.subject = Subject(f"{ME}:sink_of", lambda name: self._rows(to, name), {"port": port})

    def _rows(self, to: Path, name: str) -> Iterator[str]:
        for worker, content in shown(to).items():
            if worker.startswith(f"{name}-"):
                assert content.endswith(b"\n")
                yield from content.decode().splitlines()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("sweep")
    with Lives(folder / "lives", ME) as lives:
        yield Stage(folder, lives)


@pytest.mark.parametrize("case", CASES)
def test_each_batch_is_delivered_once_after_a_death_of_any_process_at_any_step(
    stage: Stage, case: Case, tmp_path: Path
) -> None:
    sweep(stage.lives, stage.subject, case, tmp_path)


@pytest.mark.parametrize("case", SERVER_CASES)
def test_a_server_that_dies_at_any_step_goes_on(stage: Stage, case: Case, tmp_path: Path) -> None:
    sweep(stage.lives, stage.subject, case, tmp_path, stage.orders)


def test_the_sweep_has_every_step() -> None:
    met: set[Any] = {parameter.values[0].step for parameter in [*CASES, *SERVER_CASES]}

    from wallaroo_spark.steps import SinkStep

    assert met == set(SinkStep)
