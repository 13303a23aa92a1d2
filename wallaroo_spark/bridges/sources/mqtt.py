"""The messages of MQTT topics. A message is acknowledged to the broker when it is committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from wallaroo_spark.bridges.bridge import Bridge, Promise
from wallaroo_spark.bridges.streams import QueuedMessage, QueuedStream, silent
from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.event_loop import end_tasks
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, row, setting
from wallaroo_spark.transport import client_context, parse_address

_log = one_line("wallaroo_spark.bridges")

KEEP_SECONDS = 7 * 24 * 3600
"""How long a broker of MQTT 5 keeps the messages of a bridge that is away. A choice: a week."""
CONNECT_SECONDS = 30.0
"""Longest wait for the answer to CONNECT."""
_CAUSE_SECONDS = 0.5
"""Longest wait for the client to say the cause, when its connection has ended. A choice."""
_SESSION_PRESENT = 1
"""The flag of CONNACK for a client that the broker knows."""
_RETAINED_IF_NEW = 1
"""MQTT 5: a broker that has the subscription already does not send retained messages again."""
_VERSIONS = {"3.1.1": 4, "5": 5}


@dataclass(eq=False, kw_only=True)
class MqttBridge(Bridge):
    """Send the messages that an MQTT BROKER (host:port) has for topic FILTERS, such as 'plant/#'.

    The key is the topic. A message of QoS 1 or 2 is acknowledged when it is committed, and a broker limits how many are
    not acknowledged: raise that limit, 20 in Mosquitto (max_inflight_messages 0), for more than 20 messages a batch.
    The broker keeps messages while the bridge is away, for its client's name.

    Examples:
        wallaroo-spark bridge mqtt broker:1883 'plant/#' --workers host-a:7100
    """

    promise = Promise("the time of arrival", "an acknowledgement of each message", "none is lost, some come again")
    extra = "mqtt"

    broker: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """The broker."""
    filters: tuple[str, ...] = field(kw_only=False, metadata=row(Kind.NAMES))
    """Filters of topics."""
    qos: int = setting(1, Kind.COUNT, minimum=0, maximum=2)
    """Quality of service of the subscription. With 0, messages are delivered at most once."""
    mqtt: str = setting("5", Kind.TEXT, choices=tuple(_VERSIONS))
    """Version of MQTT."""
    client: str = setting("wallaroo-bridge", Kind.TEXT)
    """The client's name, under which the broker keeps what is not acknowledged; one bridge at a time uses it."""
    user: str = setting("", Kind.TEXT)
    """The user."""
    password: str = setting("", Kind.TEXT, secret=True)
    """The password; also env:NAME or file:PATH."""
    mqtt_tls: bool = setting(False, Kind.FLAG)
    """Use TLS to the broker."""
    mqtt_ca: str = setting("", Kind.TEXT)
    """PEM file of the authority of the broker's certificate; turns TLS on."""
    mqtt_certificate: str = setting("", Kind.TEXT)
    """PEM file of a certificate to present to the broker; turns TLS on."""
    mqtt_key: str = setting("", Kind.TEXT)
    """PEM file of the key of --mqtt-certificate."""

    @property
    def place(self) -> str:
        """The name of the client."""
        return self.client

    async def streams(self) -> AsyncGenerator[Sequence[QueuedStream], None]:
        """One stream of all topics."""
        yield [MqttStream(self)]


class MqttStream(QueuedStream):
    """The messages of a client's subscriptions."""

    def __init__(self, settings: MqttBridge) -> None:
        import gmqtt.mqtt.handler

        super().__init__(settings.client)
        self.passing = (OSError, gmqtt.mqtt.handler.MQTTError)
        self._settings = settings

    async def deliveries(self) -> AsyncGenerator[Sequence[QueuedMessage], None]:
        """The messages of one connection."""
        settings = self._settings
        connection = _MqttConnection(settings)
        try:
            await connection.open()
            retained = _RETAINED_IF_NEW if settings.mqtt == "5" else 0
            for wanted in settings.filters:
                connection.client.subscribe(wanted, qos=settings.qos, retain_handling_options=retained)
            yield []
            while True:
                group = await connection.group()
                yield [one for one in group if isinstance(one, QueuedMessage)]
                for one in group:
                    if isinstance(one, Exception):
                        raise one
        finally:
            await connection.close()


class _MqttConnection:
    """One connection to a broker, and the messages of it that are not acknowledged."""

    def __init__(self, settings: MqttBridge) -> None:
        import gmqtt

        self._settings = settings
        self._arrived: asyncio.Queue[QueuedMessage | Exception] = asyncio.Queue()
        self._open: set[asyncio.Future[int]] = set()
        session = {"session_expiry_interval": KEEP_SECONDS, "receive_maximum": 65535} if settings.mqtt == "5" else {}
        self.client = gmqtt.Client(
            settings.client, clean_session=False, optimistic_acknowledgement=False, logger=silent("gmqtt"), **session
        )
        # Below the number of failures so far, so that the client never connects again by itself: the acknowledgements
        # of an old connection must not reach the next one, where their numbers belong to other messages.
        self.client.set_config({"reconnect_retries": -2})
        self._is_new = False
        """Whether the broker had no session of the client."""
        self._granted = 0
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe
        self.client.on_disconnect = self._on_disconnect
        self._ended = asyncio.Event()
        if settings.user:
            self.client.set_auth_credentials(settings.user, resolve_secret(settings.password))

    async def open(self) -> None:
        """Connect. Raises ConnectionError."""
        settings = self._settings
        host, port = parse_address(settings.broker)
        files = (settings.mqtt_ca, settings.mqtt_certificate, settings.mqtt_key)
        context = client_context(*files) if settings.mqtt_tls or any(files) else False
        connecting = asyncio.ensure_future(
            self.client.connect(host, port, ssl=context, version=_VERSIONS[settings.mqtt])
        )
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({connecting, ended}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                # An answer that has come before the end has the cause.
                await asyncio.wait({connecting}, timeout=_CAUSE_SECONDS)
            if connecting.done():
                await connecting
            elif ended.done():
                tls = "; it may ask for a certificate (--mqtt-certificate)" if context else "; it may speak TLS only"
                raise ConnectionError(f"the broker has ended the connection without an answer{tls}")
            else:
                raise ConnectionError(
                    f"no answer within {CONNECT_SECONDS:g} seconds; a broker without MQTT 5 needs --mqtt 3.1.1"
                )
        finally:
            await end_tasks(connecting, ended)

    async def group(self) -> list[QueuedMessage | Exception]:
        """The messages that have arrived, at least one, and what has ended the connection."""
        found = [await self._arrived.get()]
        while not self._arrived.empty():
            found.append(self._arrived.get_nowait())
        return found

    async def close(self) -> None:
        """Disconnect, without an acknowledgement of what is not committed."""
        if self.client.is_connected:
            await self.client.disconnect()
        for committed in self._open:
            # The client finds its connection closed, and sends no acknowledgement.
            _settle(committed)

    async def _on_message(self, _: Any, topic: str, payload: bytes, qos: int, properties: Any) -> int:
        # The client acknowledges a message when this returns; a later message is never acknowledged before it.
        committed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._open.add(committed)
        self._arrived.put_nowait(QueuedMessage(payload, partial(_settle, committed), time.time_ns(), topic.encode()))
        try:
            return await committed
        finally:
            self._open.discard(committed)

    def _on_connect(self, _: Any, flags: int, code: int, properties: Any) -> None:
        self._is_new = not flags & _SESSION_PRESENT

    def _on_disconnect(self, *_: Any) -> None:
        self._ended.set()
        self._arrived.put_nowait(ConnectionError("the broker has ended the connection"))

    def _on_subscribe(self, _: Any, mid: int, granted: Sequence[int], properties: Any) -> None:
        if any(one >= 128 for one in granted):
            filters = ", ".join(self._settings.filters)
            refused = (
                f"the MQTT broker {self._settings.broker} refuses a subscription to {filters}; check the filters and "
                "the rights of the user"
            )
            self._arrived.put_nowait(ConfigurationError(refused, code="source-setup"))
            return
        self._granted += 1
        if self._is_new and self._granted == len(self._settings.filters):
            _log.warning(
                "source %r: the broker %s did not know this client, and delivers what is published from now on",
                *(self._settings.client, self._settings.broker),
            )


def _settle(committed: asyncio.Future[int]) -> None:
    if not committed.done():
        committed.set_result(0)
