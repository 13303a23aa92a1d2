"""An application of durable streams for tests: a real gateway around real controllers, in memory, without Spark.

Publishers, consumers and stages connect to it as to an application in production, in any language. Stages with ``run:``
are run by the code that runs them in Spark. Only the files and Spark itself are left out, and with them durability.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from wallaroo_spark.client import Client, Event, StageFunction
from wallaroo_spark.client.events import decode_value
from wallaroo_spark.errors import ConfigurationError, PipelineError, TransportError
from wallaroo_spark.event_loop import LoopThread
from wallaroo_spark.gateway.cloud_events import to_wire
from wallaroo_spark.gateway.tokens import create_token
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.applying import check_objects
from wallaroo_spark.pipelines.schema.declarations import PipelineDeclaration, StreamDeclaration
from wallaroo_spark.pipelines.schema.documents import PlacedDeclaration, read_declarations, read_files
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.problems import Problems
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.pipelines.schema.validation import distinct
from wallaroo_spark.testing.memory_application import MemoryApplication, ServedGateway, serving
from wallaroo_spark.texts import hint
from wallaroo_spark.transport import parse_address
from wallaroo_spark.yaml_reader import documents_of

WAIT_SECONDS = 30.0
"""Default limit in seconds of a test's wait. A choice, generous for loaded machines."""
END_SECONDS = 0.1
"""Seconds that calls have to end by themselves when the gateway stops. A choice: they are told to end before."""


@dataclass(frozen=True)
class PipelineInstance:
    """One instance of a pipeline, as far as it has come."""

    partition: int
    """Number of the partition."""
    instance: int
    """Its number: the offset of the record that began it."""
    outcome: str | None
    """``done``, ``failed`` or ``cancelled``; None while it is active."""
    reason: str
    """Why it failed or was cancelled."""
    outputs: Mapping[str, Any]
    """The output of each stage that is done, by its name: a JSON value, a str or bytes; None for none."""


class FakeApplication:
    """An application at one address for the duration of the ``with`` block. Any thread may call its methods.

    ``schema`` are YAML files, or documents as texts of more than one line. Raises :class:`ConfigurationError` with all
    problems of the documents, as ``wallaroo-spark apply`` does.
    It needs ``pip install 'wallaroo-spark[pipelines,cli]'``.
    """

    def __init__(self, *schema: str | Path, port: int = 0) -> None:
        self._schema = _applied(StoredSchema(0, {}), schema)
        self._port = port
        self._loop: LoopThread | None = None
        self._memory: MemoryApplication | None = None
        self._served: ServedGateway | None = None
        self._serving = contextlib.AsyncExitStack()
        self._failures: list[Exception] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start to serve, as the ``with`` statement does; for tests that cannot use one."""
        self._memory = MemoryApplication(self._schema)
        self._loop = LoopThread("fake-application")
        try:
            self._loop.call(self._serve)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all connections. Everything that was kept is lost."""
        loop, memory = self._loop, self._memory
        self._loop = self._memory = self._served = None
        if loop is not None:
            loop.call(self._serving.aclose)
            loop.stop()
        if memory is not None:
            memory.close()

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``. It stays the same after :meth:`restart_gateway`."""
        if self._served is None:
            raise _not_started()
        return self._served.address

    def restart_gateway(self) -> None:
        """The gateway ends, and with it every connection; another one serves the same address. Records, instances and
        groups are kept; deliveries that were not acked are given to members again."""
        if self._loop is None:
            raise _not_started()
        self._loop.call(self._serve_again)

    def apply(self, *schema: str | Path) -> None:
        """Apply further documents while the application runs. Raises :class:`ConfigurationError`."""
        memory = self._running()
        memory.apply(_applied(memory.schema, schema))
        self._tell_gateway()

    def create_token(self, name: str) -> str:
        """Create a token of a declared Token, for the client's ``token``.

        Raises :class:`PipelineError` for a name that is not declared.
        """
        memory = self._running()
        text, kept = create_token(_declared(memory.schema, "Token", name), time.time())
        memory.tokens[kept.id] = kept
        self._tell_gateway()
        return text

    def advance(self, seconds: float | timedelta) -> None:
        """Set the application's clock forward: delays of retries, and delayed events, need no waiting in a test."""
        self._running().advance(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)

    def records(self, stream: str, partition: int | None = None) -> list[Event]:
        """The events of a stream, in the order of partitions and offsets; of one partition with ``partition``.

        Raises :class:`PipelineError` for a stream that is not declared.
        """
        memory = self._running()
        declared = _declared(memory.schema, "Stream", stream)
        assert isinstance(declared, StreamDeclaration)
        partitions = range(declared.partitions) if partition is None else (partition,)
        return [
            Event.from_message(to_wire(record))
            for number in partitions
            for record in list(memory.records[PartitionKey(stream, number)])
        ]

    def instances(self, pipeline: str) -> list[PipelineInstance]:
        """The instances of a pipeline, in the order of partitions and numbers.

        Raises :class:`PipelineError` for a pipeline that is not declared.
        """
        memory = self._running()
        _declared(memory.schema, "Pipeline", pipeline)
        found: dict[tuple[int, int], PipelineInstance] = {}
        for key, said in list(memory.said):
            match said:
                case i.InstanceBegan(pipeline=name) if name == pipeline:
                    found[key.partition, said.instance] = PipelineInstance(key.partition, said.instance, None, "", {})
                case i.StoreOutput(delivery=of) if of.pipeline == pipeline:
                    one, output = found[key.partition, of.instance], said.output
                    value = None if output is None else decode_value(output.data, output.content_type)
                    found[key.partition, of.instance] = replace(one, outputs={**one.outputs, of.stage: value})
                case i.InstanceEnded(pipeline=name) if name == pipeline:
                    one = found[key.partition, said.instance]
                    ended = replace(one, outcome=str(said.outcome), reason=said.reason)
                    found[key.partition, said.instance] = ended
        return [found[place] for place in sorted(found)]

    def await_ended(self, pipeline: str, count: int = 1, seconds: float = WAIT_SECONDS) -> list[PipelineInstance]:
        """Wait until ``count`` instances of a pipeline have ended, and return those that have.

        Raises :class:`TransportError` when they have not within ``seconds``, with the stages that active instances wait
        for, and :class:`PipelineError` for a pipeline that is not declared.
        """

        def ended() -> list[PipelineInstance]:
            return [one for one in self.instances(pipeline) if one.outcome is not None]

        if not self._wait(lambda: len(ended()) >= count, seconds):
            raise TransportError(
                f"{len(ended())} of {count} instances of {pipeline} have ended after {seconds:g} s; "
                f"{self._waiting_for(pipeline)}",
                code="test-timed-out",
            )
        return ended()

    def await_records(self, stream: str, count: int = 1, seconds: float = WAIT_SECONDS) -> list[Event]:
        """Wait until a stream has ``count`` events, and return all that it has.

        Raises as :meth:`await_ended`.
        """
        if not self._wait(lambda: len(self.records(stream)) >= count, seconds):
            found = len(self.records(stream))
            raise TransportError(
                f"stream {stream} has {found} events after {seconds:g} s, and the test needs {count}",
                code="test-timed-out",
            )
        return self.records(stream)

    @contextlib.contextmanager
    def working(self, *stages: StageFunction, **settings: Any) -> Iterator[None]:
        """Within the block, functions with ``@stage`` work on their stages, as a program of their own does.

        ``settings`` are those of the client. At the end of the block, functions that run may end. The error of a stage
        that cannot be joined is raised by the next wait, or at the end of the block.
        """
        with Client(self.address, **settings) as client:
            arguments = (client, stages)
            thread = threading.Thread(target=self._work, args=arguments, name="fake-stages", daemon=True)
            thread.start()
            try:
                yield
            finally:
                client.stop()
                thread.join(WAIT_SECONDS)
        self._raise_failure()

    def _work(self, client: Client, stages: Sequence[StageFunction]) -> None:
        try:
            client.work(*stages)
        except Exception as error:
            self._failures.append(error)
            # Wakes a wait of the test.
            self.advance(0)

    def _wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        found = self._running().wait(lambda: bool(self._failures) or holds(), seconds)
        self._raise_failure()
        return found

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop()

    def _tell_gateway(self) -> None:
        assert self._loop is not None
        assert self._served is not None
        # It would look by itself a second later.
        self._loop.call(self._served.gateway.take_rules)

    def _waiting_for(self, pipeline: str) -> str:
        memory = self._running()
        declared = _declared(memory.schema, "Pipeline", pipeline)
        assert isinstance(declared, PipelineDeclaration)
        active = [one for one in self.instances(pipeline) if one.outcome is None]
        if not active:
            return "no instance is active; compare the type of the events with the triggers"
        done = active[0].outputs
        left = [
            one.name
            for one in declared.stages
            if one.name not in done and done.keys() >= {*one.after, *one.dependencies} - {"root_event"}
        ]
        where = f"instance {active[0].instance} of partition {active[0].partition}"
        if not left:
            return f"{len(active)} are active; {where} waits for the places of its stream outputs"
        return f"{len(active)} are active; {where} waits for a result of {', '.join(left)}"

    async def _serve(self) -> None:
        assert self._memory is not None
        serving_one = serving(self._memory, port=self._port, grace=END_SECONDS)
        self._served = await self._serving.enter_async_context(serving_one)
        self._port = parse_address(self._served.address)[1]

    async def _serve_again(self) -> None:
        await self._serving.aclose()
        await self._serve()

    def _running(self) -> MemoryApplication:
        if self._memory is None:
            raise _not_started()
        return self._memory


def _not_started() -> ConfigurationError:
    return ConfigurationError(
        "the fake application is not started; use it in a with statement", code="receiver-not-started"
    )


def _applied(stored: StoredSchema, given: Sequence[str | Path]) -> StoredSchema:
    """The schema with the documents of ``given``, checked as a whole. Raises :class:`ConfigurationError`."""
    problems = Problems()
    placed: list[PlacedDeclaration] = []
    for one in given:
        if isinstance(one, str) and "\n" in one:
            placed += read_declarations(documents_of(one, "schema"), problems)
        else:
            placed += read_files([str(one)], problems)
    documents = distinct(placed, problems)
    objects = {**stored.objects, **{key: one.declaration for key, one in documents.items()}}
    check_objects(stored, objects, documents, problems)
    problems.refuse()
    return StoredSchema(stored.version + 1, objects, stored.branches, time.time())


def _declared(schema: StoredSchema, kind: str, path: str) -> Any:
    """The declaration of ``namespace/name``. Raises :class:`PipelineError`."""
    namespace, _, name = path.rpartition("/")
    found = schema.objects.get(ObjectKey(kind, namespace, name))
    if found is None:
        known = [key.path for key in schema.objects if key.kind == kind]
        way_out = hint(path, known, f"the {kind.lower()}s are", f"no {kind.lower()} is declared")
        raise PipelineError(f"{kind.lower()} {path} is not declared: {way_out}", code="object-unknown")
    return found
