"""``wallaroo-spark conformance``: checks of a connector, a worker or a gateway that was written by others."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import click

from wallaroo_spark.cli.common import TERMINATED, exit_unless
from wallaroo_spark.cli.signals import Signals
from wallaroo_spark.cli.verbs import Json, Number, row_of, verb
from wallaroo_spark.conformance import connectors, workers
from wallaroo_spark.conformance.checks import Check, CheckOutcome, CheckPlan, CheckResult
from wallaroo_spark.conformance.connector_runs import CheckedConnector
from wallaroo_spark.conformance.worker_calls import CheckedWorker
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.errors import TransportError
from wallaroo_spark.json_text import json_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.protocol import REVISIONS
from wallaroo_spark.texts import hint
from wallaroo_spark.transport import client_context, parse_address
from wallaroo_spark.transport.base import describe, not_connected

P = TypeVar("P")

SIGNS = {CheckOutcome.PASSED: "passed  ", CheckOutcome.FAILED: "FAILED  ", CheckOutcome.LEFT_OUT: "left out"}


@dataclass(frozen=True)
class TlsOptions:
    """TLS to the worker or the gateway.

    Options:
        --tls: Use TLS, with the authorities that this system trusts.
        --tls-ca FILE: PEM file of the authority of the peer's certificate.
        --tls-certificate FILE: PEM file of a certificate to present.
        --tls-key FILE: PEM file of the key of --tls-certificate.
    """

    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""

    def files(self) -> tuple[str, str, str] | None:
        """Authority, certificate and key; None without TLS."""
        found = (self.tls_ca, self.tls_certificate, self.tls_key)
        return found if self.tls or any(found) else None

    def context(self) -> ssl.SSLContext | None:
        """The context of a client; None without TLS."""
        files = self.files()
        return None if files is None else client_context(*files)


@verb()
def conformance(
    *,
    connector: str = "",
    worker: str = "",
    gateway_address: Annotated[str, "--gateway"] = "",
    checks: Annotated[tuple[str, ...], "--check"] = (),
    cookie: Annotated[str, row_of(ConnectorSettings, "cookie")],
    protocol_version: Annotated[str, "--protocol-version", row_of(ConnectorSettings, "version")],
    revisions: Annotated[tuple[str, ...], "--revision", click.Choice(list(REVISIONS))] = (),
    stream: str = "",
    token: str = "",
    tls: TlsOptions,
    timeout: Annotated[float, Number(min=0, min_open=True)] = 30.0,
    quiet: Annotated[float, Number(min=0, min_open=True)] = 0.5,
    as_json: Json = False,
) -> None:
    """Check that a connector, a worker or a gateway does as the pages of the protocol say.

    A check that fails names what was expected, what came, the frame with its wrong byte, and the section of the page.
    The exit status is 1 when a check has failed. docs/conformance.md has the table of checks.

    --connector runs CMD once for each check, against a worker on this machine that does what the check says. CMD has
    the worker's address, the cookie and the instance name in WALLAROO_WORKERS, WALLAROO_COOKIE and WALLAROO_INSTANCE,
    and {address}, {cookie} and {instance} in its arguments are replaced by them. It sends the lines of its standard
    input, or of the file {input} (WALLAROO_INPUT), as the messages of one stream, ends the stream, and exits with
    status 0 when everything is acknowledged.

    --worker connects to a worker as connectors of new instances. Its query has to run, because acknowledgements are
    waited for, and the messages become rows, of instances whose names begin with conformance-.

    --gateway connects to a gateway as a client that publishes to --stream and consumes it. Use a stream of its own.

    Options:
        --connector CMD: Check this program, which is a connector.
        --worker HOST:PORT: Check the worker at this address.
        --gateway HOST:PORT: Check the gateway at this address.
        --check NAME: Make only this check; may be given several times.
        --revision: Check a worker in this revision; may be given several times. Without it, in all.
        --stream NAME: The stream for the checks of a gateway, as namespace/name.
        --token TOKEN: The token for the gateway; env:NAME or file:PATH hide it.
        --timeout SECONDS: Longest wait for something that has to come, a commit among them.
        --quiet SECONDS: How long a connector is watched for what must not come.
        --json: Print the results as one line of JSON.

    Examples:
        wallaroo-spark conformance --connector 'node connector.mjs'
        wallaroo-spark conformance --connector 'wallaroo-spark send {input} --stream lines'
        wallaroo-spark conformance --connector './connector --to {address}' --check credits
        wallaroo-spark conformance --worker worker-1:7100 --cookie env:COOKIE --revision draft-be
        wallaroo-spark conformance --gateway gateway-1:7200 --stream test/conformance
    """
    if sum(map(bool, (connector, worker, gateway_address))) != 1:
        raise click.UsageError("give one of --connector CMD, --worker HOST:PORT and --gateway HOST:PORT")
    if connector:
        plan = _of_connector(connector, resolve_secret(cookie), protocol_version, timeout, quiet, checks)
    elif worker:
        context = tls.context()
        _reach(worker, timeout, context, not_connected)
        setting = CheckedWorker(worker, resolve_secret(cookie), protocol_version, context, timeout)
        plan = workers.plan(setting, _chosen(workers.CHECKS, checks), revisions or REVISIONS)
    else:
        plan = _of_gateway(gateway_address, stream, resolve_secret(token), tls, timeout, checks)
    with Signals():
        results = _made(plan, as_json)
        exit_unless(not any(one.outcome is CheckOutcome.FAILED for one in results))
        return
    raise click.exceptions.Exit(TERMINATED)


def _reach(
    address: str,
    seconds: float,
    tls: ssl.SSLContext | None,
    error: Callable[[str, Exception, float], TransportError],
) -> None:
    """Raise an error when an address cannot be connected to, in place of one failure for each check."""
    host, port = parse_address(address)
    try:
        with socket.create_connection((host, port), seconds) as plain:
            if tls is not None:
                tls.wrap_socket(plain, server_hostname=host).close()
    except OSError as reason:
        raise error(address, reason, seconds) from reason


def _no_gateway(address: str, reason: Exception, _: float) -> TransportError:
    return TransportError(
        f"cannot connect to the gateway {address}: {describe(reason)}; check the address, that the application runs, "
        "and that both sides use TLS or none does",
        code="gateway-unreachable",
        peer=address,
    )


def _of_connector(
    command: str, cookie: str, version: str, timeout: float, quiet: float, checks: Sequence[str]
) -> CheckPlan:
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--connector {command}: {error}") from None
    if not parts or shutil.which(parts[0]) is None:
        raise click.UsageError(
            f"--connector {command}: there is no program {parts[0] if parts else ''!r} that this user may run; give "
            "its path, and make the file executable"
        )
    setting = CheckedConnector(parts, cookie or "conformance", version, timeout, quiet)
    return connectors.plan(setting, _chosen(connectors.CHECKS, checks))


def _of_gateway(
    address: str, stream: str, token: str, tls: TlsOptions, timeout: float, checks: Sequence[str]
) -> CheckPlan:
    import grpc

    from wallaroo_spark.conformance import gateways
    from wallaroo_spark.transport.tls import read_authority, read_pair

    if not stream:
        raise click.UsageError("--gateway needs --stream NAMESPACE/NAME, a stream to which nobody else publishes")
    context = tls.context()
    if context is not None:
        context.set_alpn_protocols(["h2"])
    _reach(address, timeout, context, _no_gateway)
    credentials = None
    if (files := tls.files()) is not None:
        ca, certificate, key = files
        pair = read_pair(certificate, key) if certificate else (None, None)
        credentials = grpc.ssl_channel_credentials(read_authority(ca) if ca else None, pair[1], pair[0])
    setting = gateways.CheckedGateway(address, stream, token, credentials, timeout)
    return gateways.plan(setting, _chosen(gateways.CHECKS, checks))


def _chosen(table: Sequence[Check[P]], names: Sequence[str]) -> Sequence[Check[P]]:
    known = [check.name for check in table]
    for name in names:
        if name not in known:
            raise click.UsageError(f"--check {name}: {hint(name, known)}")
    return [check for check in table if not names or check.name in names]


def _made(plan: CheckPlan, as_json: bool) -> list[CheckResult]:
    results: list[CheckResult] = []
    with contextlib.closing(plan.results()) as found:
        for one in found:
            results.append(one)
            if not as_json:
                click.echo(_text(one))
    numbers = Counter(one.outcome for one in results)
    if as_json:
        totals: dict[str, Any] = {outcome.replace(" ", "_"): numbers[outcome] for outcome in CheckOutcome}
        click.echo(json_line({**totals, "checks": [one.to_json() for one in results]}))
    else:
        click.echo(", ".join(f"{numbers[outcome]} {outcome}" for outcome in CheckOutcome))
    return results


def _text(one: CheckResult) -> str:
    revision = f" ({one.revision})" if one.revision else ""
    text = f"{SIGNS[one.outcome]} {one.check}{revision}"
    if one.outcome is CheckOutcome.LEFT_OUT:
        return f"{text}: {one.came}"
    if one.outcome is CheckOutcome.PASSED:
        return text
    lines = {"check": one.does, "expected": one.expected, "came": one.came}
    lines["frame"] = one.frame if one.frame != one.came else ""
    lines["bytes"] = one.bytes + ("" if one.offset is None else f" (wrong at byte {one.offset} of its direction)")
    lines["page"] = one.page
    return "\n".join([text, *(f"    {name:9}{value}" for name, value in lines.items() if value)])
