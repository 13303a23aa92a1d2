"""A gateway as a long job: its lease, its address, and its orderly end. Source: ``docs/pipelines/gateway.md``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from wallaroo_spark import transport
from wallaroo_spark.errors import ConfigurationError, LeaseLostError, TransportError, one_line
from wallaroo_spark.gateway.folder_files import FolderFiles
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.server.connectors import ConnectorPeers
from wallaroo_spark.gateway.server.credentials import TlsFiles
from wallaroo_spark.gateway.server.file_calls import FileCalls
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.listener import bind, make_server
from wallaroo_spark.gateway.server.peers import Peers, channel_to
from wallaroo_spark.registry import Registry, application_registry, connectors_registry
from wallaroo_spark.slots.service import ServiceThread, serve
from wallaroo_spark.slots.shell import Door, ServiceShell
from wallaroo_spark.slots.tenancy import Tenancy
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.transport import Listener
from wallaroo_spark.transport.port_handover import FREE_SECONDS

log = one_line(logging.getLogger("wallaroo_spark.gateway"))

STOP_SECONDS = 5.0
"""How long clients have to read the last messages when the gateway ends. A choice, shorter than the driver's wait."""
_PAUSE_SECONDS = 0.2
"""Seconds between two attempts to bind the port. A choice."""


@dataclass(frozen=True)
class GatewaySetup:
    """The settings that the driver ships to a gateway. It is pickled, and its secrets are resolved."""

    application: str
    """Name of the application in the registry."""
    folder: Location
    """Folder of the application, as a task opens it."""
    registry: str = field(repr=False)
    """Redis URL."""
    number: int = 0
    """Number of this gateway; its name is ``g<number>``."""
    submission: int = 0
    """Number of the Spark job that runs the gateway."""
    host: str = "127.0.0.1"
    """Address to bind; empty: every interface."""
    port: int = 0
    """Port of gateway 0; gateway p listens on port + p. 0: any free port."""
    advertise: str = ""
    """Address that clients connect to; empty: detected."""
    lease_seconds: float = 10.0
    """Length of the lease in seconds."""
    tls_certificate: str = ""
    """PEM file of the certificate chain; empty: no TLS."""
    tls_key: str = ""
    """PEM file of its key."""
    tls_ca: str = ""
    """PEM file of the authority of clients' certificates."""
    limits: GatewayLimits = GatewayLimits()
    """The limits."""
    connector_port: int | None = None
    """Port of gateway 0 for connectors; gateway p listens on connector_port + p. 0: any free port. None: none."""
    connector_advertise: str = ""
    """Address that connectors connect to; empty: as clients do, with the port for connectors."""

    @property
    def gateway(self) -> str:
        """Name of the gateway."""
        return f"g{self.number}"


class GatewayService(ServiceShell[Any, Tenancy]):
    """One gateway, from acquiring its lease to releasing it."""

    def __init__(
        self, setup: GatewaySetup, registry: Registry, tenancy: Tenancy, connectors: Registry | None = None
    ) -> None:
        name = f"application {setup.application}, gateway {setup.gateway}"
        super().__init__(tenancy, setup.number, name, setup.lease_seconds)
        self.setup = setup
        self._registry = registry
        self._addresses: dict[str, str] = {}
        self._gateway: Gateway | None = None
        self._connectors = connectors
        self._announcement: Tenancy | None = None
        """The lease by which connectors find the gateway."""

    async def _serve(self) -> None:
        setup = self.setup
        if not await self._take_lease():
            return
        # Reading the files and binding the port may take longer than the lease lasts, so it is renewed meanwhile.
        self._spawn(self._renew(min(1.0, self._renewal_seconds), self._renewal, self._take_addresses))
        files = await FileCalls(setup.limits.file_seconds).call(FolderFiles, setup.folder, setup.gateway)
        gateway = self._gateway = Gateway(
            setup.gateway,
            files,
            setup.limits,
            self._fail,
            peers=Peers(setup.gateway, lambda: self._addresses, self._connect),
            addresses=lambda: [address for _, address in sorted(self._addresses.items())],
        )
        server = make_server(gateway)
        door: Listener | None = None
        try:
            await gateway.start()
            port = await self._bind(server)
            if port is None:
                return
            await server.start()
            host = setup.advertise or transport.reachable_host(setup.host, setup.registry)
            address = transport.advertised(host, setup.number, port)
            self._warn_of_open_access(gateway)
            if setup.connector_port is not None:
                door = await self._open_door(gateway)
                if door is None:
                    return
            if await self._take_lease(address):
                self._addresses = {**self._addresses, setup.gateway: address}
                log.info("%s listens at %s", self._name, address)
                await self._stopped.wait()
        finally:
            gateway.end(self._stop_reason or "its task ends")
            closing = [server.stop(STOP_SECONDS)] + ([door.close(STOP_SECONDS)] if door is not None else [])
            await asyncio.gather(*closing)
            await gateway.close()

    async def _open_door(self, gateway: Gateway) -> Listener | None:
        """Listen for connectors, and tell them the address; None when the gateway is stopped first."""
        setup, leases = self.setup, self._connectors
        assert leases is not None
        own = Door(setup.host, setup.connector_port or 0, setup.tls_certificate, setup.tls_key, setup.tls_ca)
        listener = await self._listen(own, ConnectorPeers(gateway).serve)
        if listener is None:
            return None
        host = setup.connector_advertise or setup.advertise or transport.reachable_host(setup.host, setup.registry)
        address = transport.advertised(host, setup.number, listener.address[1])
        holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        name = f"{self._name}, connectors"
        tenancy = self._announcement = Tenancy(leases, setup.number, setup.submission, holder, name)
        taken = False
        try:
            taken = await tenancy.take(address, "", self._stopped, self._renewal_seconds)
        except LeaseLostError as error:
            await self._lease_lost(error)
        finally:
            if not taken:
                await listener.close(0.0)
        if not taken:
            return None
        log.info("%s listens for connectors at %s", self._name, address)
        self._spawn(self._renew_announcement(leases, tenancy))
        return listener

    async def _renew_announcement(self, leases: Registry, tenancy: Tenancy) -> None:
        while True:
            await asyncio.sleep(self._renewal_seconds)
            try:
                await tenancy.keep(tenancy.ask(lambda: leases.renew(tenancy.current)))
            except LeaseLostError as error:
                await self._lease_lost(error)
                return

    async def _shut_down(self) -> None:
        if self._announcement is not None:
            await self._announcement.release()

    async def _bind(self, server: Any) -> int | None:
        """Bind the port, waiting until a predecessor has closed it; None when the gateway is stopped first."""
        setup, until = self.setup, time.monotonic() + FREE_SECONDS
        port = setup.port + setup.number if setup.port else 0
        while not self._stopped.is_set():
            try:
                return bind(server, setup.host, port, setup.tls_certificate, setup.tls_key, setup.tls_ca)
            except TransportError as error:
                if time.monotonic() > until:
                    raise ConfigurationError(error.message, code="cannot-listen", **error.fields) from error
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), _PAUSE_SECONDS)
        return None

    def _warn_of_open_access(self, gateway: Gateway) -> None:
        setup = self.setup
        if not gateway.access.open and transport.open_access_warning("gateways", setup.host, "", setup.tls_certificate):
            log.warning(
                "%s is sent tokens without encryption, and listens at %s: everybody who reads the network can use "
                "them; set tls_certificate, or listen on loopback (host=127.0.0.1)",
                self._name,
                setup.host or "every interface",
            )
        if gateway.access.open and transport.open_access_warning("gateways", setup.host, "", setup.tls_ca):
            log.warning(
                "%s accepts every client that reaches it: the schema declares no Token, and it listens at %s; declare "
                "a Token, or require certificates of an authority (tls_ca), or listen on loopback (host=127.0.0.1)",
                self._name,
                setup.host or "every interface",
            )

    async def _renewal(self) -> dict[int, Any]:
        lease = self._tenancy.current
        await self._tenancy.ask(lambda: self._registry.renew(lease))
        if self._gateway is not None:
            report = json.dumps({"gateway": self.setup.gateway, "host": socket.gethostname(), **self._gateway.report()})
            await self._tenancy.ask(lambda: self._registry.publish_slot_report(self.setup.number, report))
        return await self._tenancy.ask(self._registry.leases)

    def _take_addresses(self, leases: dict[int, Any]) -> None:
        found = {f"g{number}": lease.connect for number, lease in leases.items() if lease.connect}
        changed, self._addresses = found.keys() != self._addresses.keys(), found
        if changed and self._gateway is not None:
            self._gateway.peers_changed()

    def _connect(self, address: str) -> Any:
        """A channel to another gateway; it has the same certificate and authority as this one."""
        setup = self.setup
        return channel_to(address, TlsFiles(setup.tls_certificate, setup.tls_key, setup.tls_ca))

    async def _lease_lost(self, error: LeaseLostError) -> None:
        log.info("%s ends: %s", self._name, error)
        self.stop("its lease is revoked, or another process has it")


def run_gateway(setup: GatewaySetup, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Run the gateway within ``mapInPandas``. Yields empty frames as heartbeats, and ends with the gateway."""
    holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    given = setup.registry, setup.application
    with (
        application_registry(*given, lease_seconds=setup.lease_seconds) as registry,
        connectors_registry(*given, lease_seconds=setup.lease_seconds) as connectors,
    ):
        name = f"application {setup.application}, gateway {setup.gateway}"
        tenancy = Tenancy(registry, setup.number, setup.submission, holder, name)
        service = GatewayService(setup, registry, tenancy, connectors)
        yield from serve(ServiceThread(service, f"wallaroo-gateway-{setup.application}-{setup.number}"), rows)
