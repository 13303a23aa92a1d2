"""A gateway as a long job: its lease, its address, and its orderly end. Source: ``docs/pipelines/gateway.md``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pandas as pd

from wallaroo_spark import transport
from wallaroo_spark.errors import ConfigurationError, LeaseLostError, TransportError, one_line
from wallaroo_spark.gateway.files import FileCalls, FolderFiles
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.server.credentials import TlsFiles
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.listener import bind, make_server
from wallaroo_spark.gateway.server.peers import Peers, channel_to
from wallaroo_spark.registry import Registry, application_registry
from wallaroo_spark.runtime.listening import ListenSettings
from wallaroo_spark.runtime.service import ServiceShell, ServiceThread, Tenancy, new_holder, serve
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.transport.tcp import FREE_SECONDS

log = one_line("wallaroo_spark.gateway")

STOP_SECONDS = 5.0
"""How long clients have to read the last messages when the gateway ends. The driver waits for longer."""
_PAUSE_SECONDS = 0.2
"""Seconds between two attempts to bind the port."""
_UNENCRYPTED = (
    "%s is sent tokens without encryption, and listens at %s: everybody who reads the network can use them; set "
    "tls_certificate, or listen on loopback (host=127.0.0.1)"
)
_OPEN = (
    "%s accepts every client that reaches it: the schema declares no Token, and it listens at %s; declare a Token, or "
    "require certificates of an authority (tls_ca), or listen on loopback (host=127.0.0.1)"
)


class GatewaySettings(ListenSettings, Protocol):
    """The settings of an application that its gateways use."""

    @property
    def known_as(self) -> str:
        """Name of the application in the registry."""

    @property
    def registry(self) -> str:
        """Redis URL."""

    @property
    def advertise(self) -> str:
        """Address that clients connect to; empty: detected."""

    @property
    def lease_seconds(self) -> float:
        """Length of the lease in seconds."""

    @property
    def fsync(self) -> bool:
        """Whether a batch is committed once its commit is on the disk."""


@dataclass(frozen=True)
class GatewaySetup:
    """What the driver ships to a gateway. It is pickled."""

    settings: GatewaySettings
    """The application's settings, with resolved secrets and without the session."""
    folder: Location
    """Folder of the application, as a task opens it."""
    number: int = 0
    """Number of this gateway; its name is ``g<number>``."""
    submission: int = 0
    """Number of the Spark job that runs the gateway."""
    limits: GatewayLimits = GatewayLimits()

    @property
    def gateway(self) -> str:
        """Name of the gateway."""
        return f"g{self.number}"

    def of(self, number: int, submission: int) -> GatewaySetup:
        """The setup of one gateway."""
        return replace(self, number=number, submission=submission)


class GatewayService(ServiceShell[Any, Tenancy]):
    """One gateway, from acquiring its lease to releasing it."""

    def __init__(self, setup: GatewaySetup, registry: Registry, tenancy: Tenancy) -> None:
        self.settings = setup.settings
        name = f"application {self.settings.known_as}, gateway {setup.gateway}"
        super().__init__(tenancy, setup.number, name, self.settings.lease_seconds)
        self.setup = setup
        self._tls = TlsFiles(self.settings.tls_certificate, self.settings.tls_key, self.settings.tls_ca)
        self._registry = registry
        self._addresses: dict[str, str] = {}
        self._gateway: Gateway | None = None

    async def _serve(self) -> None:
        setup, settings = self.setup, self.settings
        if not await self._take_lease():
            return
        # Reading the files and binding the port may take longer than the lease lasts, so it is renewed meanwhile.
        self._spawn(self._renew(min(1.0, self._renewal_seconds), self._renewal, self._take_addresses))
        open_files = functools.partial(FolderFiles, setup.folder, setup.gateway, fsync=settings.fsync)
        files = await FileCalls(setup.limits.file_seconds).call(open_files)
        gateway = self._gateway = Gateway(
            setup.gateway,
            files,
            setup.limits,
            self._fail,
            peers=Peers(setup.gateway, lambda: self._addresses, functools.partial(channel_to, tls=self._tls)),
            addresses=lambda: [address for _, address in sorted(self._addresses.items())],
        )
        server = make_server(gateway)
        try:
            await gateway.start()
            port = await self._bind(server)
            if port is None:
                return
            await server.start()
            host = settings.advertise or transport.reachable_host(settings.host, settings.registry)
            address = transport.advertised(host, setup.number, port)
            self._warn_of_open_access(gateway)
            if await self._take_lease(address):
                self._addresses = {**self._addresses, setup.gateway: address}
                log.info("%s listens at %s", self._name, address)
                await self._stopped.wait()
        finally:
            gateway.end(self._stop_reason or "its task ends")
            await server.stop(STOP_SECONDS)
            await gateway.close()

    async def _bind(self, server: Any) -> int | None:
        """Bind the port, waiting until a predecessor has closed it; None when the gateway is stopped first."""
        settings, until = self.settings, time.monotonic() + FREE_SECONDS
        port = settings.port + self.setup.number if settings.port else 0
        while not self._stopped.is_set():
            try:
                return bind(server, settings.host, port, self._tls)
            except TransportError as error:
                if time.monotonic() > until:
                    raise ConfigurationError(error.message, code="cannot-listen", **error.fields) from error
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), _PAUSE_SECONDS)
        return None

    def _warn_of_open_access(self, gateway: Gateway) -> None:
        settings = self.settings
        guard = settings.tls_ca if gateway.access.open else settings.tls_certificate
        if transport.open_access_warning("gateways", settings.host, "", guard):
            problem = _OPEN if gateway.access.open else _UNENCRYPTED
            log.warning(problem, self._name, settings.host or "every interface")

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

    async def _lease_lost(self, error: LeaseLostError) -> None:
        log.info("%s ends: %s", self._name, error)
        self.stop("its lease is revoked, or another process has it")


def run_gateway(setup: GatewaySetup, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Run the gateway within ``mapInPandas``. Yields empty frames as heartbeats, and ends with the gateway."""
    settings, name = setup.settings, setup.settings.known_as
    with application_registry(settings.registry, name, lease_seconds=settings.lease_seconds) as registry:
        shown = f"application {name}, gateway {setup.gateway}"
        tenancy = Tenancy(registry, setup.number, setup.submission, new_holder(), shown)
        service = GatewayService(setup, registry, tenancy)
        yield from serve(ServiceThread(service, f"wallaroo-gateway-{name}-{setup.number}"), rows)
