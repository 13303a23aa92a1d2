"""The gateways of an application as long jobs: their setup, and the function that a task runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.gateway.service import GatewaySetup
from wallaroo_spark.slots import spark_checks
from wallaroo_spark.slots.long_jobs import Work
from wallaroo_spark.storage.locations import for_tasks
from wallaroo_spark.telemetry.logs import LogSettings, least_level, log_to_stderr, secrets_of


def gateway_setup(settings: ApplicationSettings, spark: Any, registry_url: str) -> GatewaySetup:
    """The setup of gateway 0; ``registry_url`` is resolved, because executors have not the driver's environment."""
    local = spark_checks.on_one_machine(spark_checks.master_of(spark))
    return GatewaySetup(
        application=settings.known_as,
        folder=for_tasks(settings.folder, spark),
        registry=registry_url,
        host=settings.host or ("127.0.0.1" if local else ""),
        port=settings.port,
        advertise=settings.advertise,
        lease_seconds=settings.lease_seconds,
        tls_certificate=settings.tls_certificate,
        tls_key=settings.tls_key,
        tls_ca=settings.tls_ca,
        connector_port=settings.connector_port,
        connector_advertise=settings.connector_advertise,
    )


def log_settings(settings: ApplicationSettings, spark: Any, registry_url: str) -> LogSettings:
    """The format of the gateways' log, as that of workers is."""
    return LogSettings(
        settings.known_as,
        least_level(settings.log_level, spark_checks.master_of(spark)),
        settings.log_format,
        secrets_of(registry_url),
        ("application", "gateway"),
    )


def gateway_work(setup: GatewaySetup, log: LogSettings) -> Callable[[int, int], Work]:
    """A function from a gateway's number and its submission to the function that its task runs."""
    return lambda number, submission: _gateway(dataclasses.replace(setup, number=number, submission=submission), log)


def _gateway(setup: GatewaySetup, log: LogSettings) -> Work:
    def serve(rows: Any) -> Any:
        from wallaroo_spark.gateway.service import run_gateway

        log_to_stderr(log, setup.gateway)
        yield from run_gateway(setup, rows)

    return serve
