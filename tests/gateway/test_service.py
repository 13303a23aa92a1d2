"""A gateway over a real folder and a real Redis: its inbox and its batches, its lease, TLS, and its tokens.

The controllers are played by the test: it reads the inbox and commits a batch with the answer.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests import evil_values as evil
from tests.gateway.memory import schema_of
from tests.gateway.shop import SHOP, TOKENS, join, publish
from tests.pems import Pems
from tests.streams.application import ApplicationFiles
from tests.streams.samples import rows_of
from tests.waiting import SECONDS, eventually
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.gateway.service import GatewayService, GatewaySetup
from wallaroo_spark.gateway.tokens import TokenStore
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery, PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.declarations import Permission, TokenDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.registry import EmbeddedRedis, Registry, application_registry
from wallaroo_spark.runtime.service import ServiceThread, Tenancy
from wallaroo_spark.streams.inbox import InboxReader
from wallaroo_spark.streams.rows import OutputKind

KEY = PartitionKey("shop/orders", 0)


class Stage:
    """An application's folder, its registry, and its gateways."""

    def __init__(self, folder: Path, redis: EmbeddedRedis) -> None:
        self.files = ApplicationFiles(folder)
        self.settings = ApplicationSettings(
            None,
            str(folder),
            name=f"app-{uuid.uuid4().hex[:8]}",
            registry=redis.url,
            host="127.0.0.1",
            lease_seconds=60.0,
        )
        self.registry: Registry = application_registry(redis.url, self.settings.known_as, lease_seconds=60.0)
        self.schema(SHOP)

    def schema(self, text: str, version: int = 1) -> None:
        assert SchemaStore(self.files.location).write(schema_of(text, version))

    def gateway(self, **fields: Any) -> ServiceThread:
        settings = replace(self.settings, **fields)
        setup = GatewaySetup(settings, settings.folder, submission=self.registry.next_submission())
        registry = application_registry(settings.registry, settings.known_as, lease_seconds=60.0)
        tenancy = Tenancy(registry, setup.number, setup.submission, uuid.uuid4().hex, "test")
        return ServiceThread(GatewayService(setup, registry, tenancy), "test-gateway")

    def address(self, number: int = 0) -> str:
        """The address of a gateway, once it listens."""
        found: str = eventually(lambda: getattr(self.registry.leases().get(number), "connect", ""))
        return found

    def inbox(self) -> list[tuple[int, PartitionKey, e.Event]]:
        """All events in the inbox: generation, key and event."""
        reader, found = InboxReader(self.files.location), []
        for gateway, generations in reader.unread({}, fresh=True).items():
            for generation, files in generations.items():
                for file in files:
                    for rows in reader.read(gateway, generation, file):
                        for row in rows.to_pylist():
                            key = PartitionKey(row["stream"], row["partition"])
                            found.append((generation, key, decode(row["event"])))
        return found

    def event(self, kind: Any, count: int = 1) -> list[Any]:
        """The events of a kind, once there are so many."""
        return list(eventually(lambda: self._of(kind) if len(self._of(kind)) >= count else None))

    def _of(self, kind: Any) -> list[Any]:
        return [event for _, _, event in self.inbox() if isinstance(event, kind)]

    def commit(self, *said: i.Instruction, records: tuple[CloudEvent, ...] | None = None) -> None:
        """Commit a batch with messages for gateway g0."""
        rows = [{"instruction": encode(one), "records": records and encode(records)} for one in said]
        self.files.commit(rows_of(OutputKind.OUTBOX, rows, target="g0"))


@pytest.fixture
def stage(tmp_path: Path, file_redis: EmbeddedRedis) -> Iterator[Stage]:
    made = Stage(tmp_path, file_redis)
    yield made
    made.registry.close()


def streams(channel: Any) -> Any:
    kind: Any = rpc.StreamsStub
    return kind(channel)


def test_a_gateway_writes_to_the_inbox_and_answers_what_is_committed(stage: Stage) -> None:
    stage.files.commit()
    with stage.gateway(), grpc.insecure_channel(stage.address()) as channel:
        started = stage.event(e.GatewayStarted, 3)
        assert started == [e.GatewayStarted("g0", 1)] * 3
        answer = streams(channel).Publish.future(publish("a"), timeout=SECONDS)
        (published,) = stage.event(e.RecordsPublished)
        assert [one.id for one in published.records] == ["a"]
        stage.commit(i.AnswerRequest(published.reply_to, (i.Written(KEY, (7,)),)))
        assert answer.result().places == [pb.Place(partition=0, offset=7)]

        ended = threading.Event()
        call = streams(channel).Subscribe(_until(ended, join(partitions=[0])), timeout=SECONDS)
        (joined,) = stage.event(e.GroupJoined)
        stage.commit(i.AnswerRequest(joined.reply_to))
        assert next(call).joined.member == "g0.1.1"
        given = i.DeliverRecords(joined.member, GroupDelivery("readers", 1), 7, 7)
        stage.commit(given, records=published.records)
        assert next(call).delivery.events[0].id == "a"
        # The client is gone: its member leaves.
        call.cancel()
        ended.set()
        assert stage.event(e.MemberLeft) == [e.MemberLeft("g0.1.1.0")]


def _until(ended: threading.Event, *messages: Any) -> Iterator[Any]:
    """The messages of a client that then keeps its side open until the event."""
    yield from messages
    ended.wait(SECONDS)


def test_a_gateway_whose_lease_is_revoked_ends_with_try_again(stage: Stage) -> None:
    with stage.gateway() as running, grpc.insecure_channel(stage.address()) as channel:
        answer = streams(channel).Publish.future(publish("a"), timeout=SECONDS)
        stage.event(e.RecordsPublished)
        stage.registry.forget_slots_from(0)
        with pytest.raises(grpc.RpcError) as caught:
            answer.result()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        eventually(lambda: not running.alive(0.1))


def test_a_newer_submission_begins_a_newer_generation(stage: Stage) -> None:
    with stage.gateway() as first:
        old = stage.address()
        with stage.gateway():
            eventually(lambda: stage.address() != old)
            eventually(lambda: not first.alive(0.1))
            generations = {generation for generation, _, event in stage.inbox() if isinstance(event, e.GatewayStarted)}
            assert generations == {1, 2}


def test_a_gateway_with_an_authority_serves_clients_with_certificates_only(stage: Stage, pems: Pems) -> None:
    tls = {"tls_certificate": pems.server, "tls_key": pems.server_key, "tls_ca": pems.ca}
    authority, key, chain = (Path(path).read_bytes() for path in (pems.ca, pems.client_key, pems.client))
    with stage.gateway(**tls):
        address = stage.address()
        request = publish("a", durability=pb.RECEIVED)
        known = grpc.ssl_channel_credentials(authority, key, chain)
        with grpc.secure_channel(address, known) as channel:
            streams(channel).Publish(request, timeout=SECONDS)
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority)) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                streams(channel).Publish(request, timeout=SECONDS)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_tokens_are_made_listed_and_revoked_and_a_gateway_knows_it_soon(stage: Stage) -> None:
    stage.schema(SHOP + TOKENS, 2)
    declared = schema_of(SHOP + TOKENS).objects[ObjectKey("Token", "", "seller")]
    assert isinstance(declared, TokenDeclaration)
    store = TokenStore(stage.files.location)
    text, token = store.create(declared, 5.0)
    assert store.list() == {token.id: token}
    assert text.split("_", 2)[2] not in "".join(path.read_text() for path in stage.files.folder.rglob("*.json"))
    request = publish("a", durability=pb.RECEIVED)
    bearer = (("authorization", f"Bearer {text}"),)
    with stage.gateway(), grpc.insecure_channel(stage.address()) as channel:
        streams(channel).Publish(request, metadata=bearer, timeout=SECONDS)
        assert store.revoke(token.id).revoked
        eventually(lambda: _code(channel, request, bearer) is grpc.StatusCode.UNAUTHENTICATED)


def test_tokens_without_tls_beyond_loopback_are_warned_of(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.schema(SHOP + TOKENS, 2)
    with stage.gateway(host="0.0.0.0", advertise="127.0.0.1"):
        stage.address()
        assert any("is sent tokens without encryption" in one.getMessage() for one in caplog.records)


def _code(channel: Any, request: Any, metadata: Any) -> Any:
    try:
        streams(channel).Publish(request, metadata=metadata, timeout=SECONDS)
    except grpc.RpcError as error:
        return error.code()
    return None


def test_a_token_that_is_not_there_cannot_be_revoked(tmp_path: Path) -> None:
    store = TokenStore(str(tmp_path))
    assert store.list() == {}
    for id in ("0123456789abcdef", "../x", ""):
        with pytest.raises(PipelineError) as caught:
            store.revoke(id)
        assert caught.value.code == "token-unknown"


def test_a_token_file_that_cannot_be_understood_is_no_token_and_the_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = TokenStore(str(tmp_path))
    _, good = store.create(TokenDeclaration(name="seller", permissions=(Permission(access="all"),)), 1.0)
    folder = tmp_path / "_wallaroo" / "tokens"
    (written,) = folder.iterdir()
    content = written.read_bytes()
    bad = [b"", b"{", b"[]", b"\xff", content, content.replace(b"1.0", b'"now"'), content.replace(b": 1", b": 99")]
    bad += [evil.PAYLOADS["nested 50,000 deep"], content.replace(b'"seller"', b"[]")]
    for number, one in enumerate(bad):
        name = f"{number:016x}"
        named = one if one == content else one.replace(good.id.encode(), name.encode())
        (folder / f"{name}.json").write_bytes(named)
    for _ in range(3):
        assert store.list() == {good.id: good}
    # Each is named once, although a gateway reads them every second.
    assert len([one for one in caplog.messages if "is not a token" in one]) == len(bad)
