"""Channels over QUIC beside TCP with TLS: on the loopback, and over a cable that loses packets.

The cable needs root and ``/dev/net/tun``; without them these parts are left out, and the bench says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trustme

from proving.bench.results.figures import Spread
from proving.bench.stage import Context
from proving.network.lossy import LossyCable, Weather
from proving.processes import end

ROADS = ("tcp", "quic")
LOSSES = (0.01, 0.05)
"""Shares of packets that are lost, in each direction."""
DELAY = 0.01
"""Seconds that a packet takes in each direction, as within a country."""
MEGABYTES = {"tcp": 400.0, "quic": 40.0}
"""What one run sends: about two seconds of each."""
COMMIT_SECONDS = 0.01
"""Seconds between two commits of the worker of a connector, short beside the way of a packet."""
DATAGRAMS = 2000
REPETITIONS = 5
PROGRAM = "proving.bench.channels.program"


@dataclass(frozen=True)
class Files:
    """PEM files of a throw-away authority and of a server."""

    ca: str
    certificate: str
    key: str

    @classmethod
    def make(cls, folder: Path, name: str = "localhost") -> Files:
        """Issue them; ``name`` is the server's name or address."""
        authority = trustme.CA()
        server = authority.issue_cert(name)
        found = cls(*(str(folder / name) for name in ("ca.pem", "server.pem", "server.key")))
        authority.cert_pem.write_to_path(found.ca)
        server.cert_chain_pems[0].write_to_path(found.certificate)
        server.private_key_pem.write_to_path(found.key)
        return found


def measure(context: Context) -> dict[str, Any]:
    """All figures."""
    files = Files.make(context.directory)
    quick = context.lengths.measured < 5
    found: dict[str, Any] = {"bulk": bulk(files, 2 if quick else REPETITIONS, 0.2 if quick else 1.0, context.progress)}
    for road, rates in found["bulk"].items():
        context.say(f"  {road}: {rates['median']:,.0f} MB/s")
    try:
        with LossyCable():
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        context.say(f"  no cable that loses packets can be made here, so what needs one is left out: {error}")
        return found
    found["quiet"] = []
    for loss in LOSSES:
        for road in ROADS:
            context.progress(f"channels: a quiet stream over {road}, {loss:.0%} loss")
            run = quiet(files, road, loss, 10.0 if quick else 60.0)
            found["quiet"].append(run)
            context.say(f"  {road}, {loss:.0%} loss: p50 {run['p50']:.1f} ms, p99 {run['p99']:.1f} ms")
    found["connectors"] = []
    for loss in LOSSES:
        for road in ROADS:
            context.progress(f"channels: a connector's quiet stream over {road}, {loss:.0%} loss")
            run = connector(context.directory, road, loss, 10.0 if quick else 60.0)
            found["connectors"].append(run)
            context.say(f"  a connector over {road}, {loss:.0%} loss: p50 {run['p50']:.1f} ms, p99 {run['p99']:.1f} ms")
    context.progress("channels: a changed address, and datagrams")
    found["moved"] = {road: moved(files, road, 3 if quick else REPETITIONS) for road in ROADS}
    found["datagrams"] = datagrams(files, DATAGRAMS // 4 if quick else DATAGRAMS)
    return found


def bulk(files: Files, repetitions: int, part: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Megabytes a second on the loopback, in messages of 64 KiB. The roads take turns."""
    rates: dict[str, list[float]] = {road: [] for road in ROADS}
    for number in range(repetitions):
        for road in ROADS:
            progress(f"channels: throughput over {road}, {number + 1} of {repetitions}")
            with _server(files, road, "127.0.0.1") as address:
                one = _client(road, "bulk", address, files.ca, str(part * MEGABYTES[road]))
            rates[road].append(one["megabytes_per_second"])
    return {road: Spread.of(found).to_json() for road, found in rates.items()}


def quiet(files: Files, road: str, loss: float, seconds: float) -> dict[str, Any]:
    """Milliseconds to the answer of a message of a quiet stream, beside a busy one."""
    with (
        LossyCable(Weather(loss=loss, delay=DELAY), seed=1) as cable,
        _server(files, road, cable.far_address, cable.far) as address,
    ):
        taken = _client(road, "quiet", address, files.ca, str(seconds), prefix=cable.near)["ms"]
    return _percentiles(road, loss, taken)


def _percentiles(road: str, loss: float, taken: list[float]) -> dict[str, Any]:
    p50, p99 = np.percentile(taken, (50, 99))
    return {"road": road, "loss": loss, "messages": len(taken), "p50": float(p50), "p99": float(p99)}


def connector(folder: Path, road: str, loss: float, seconds: float) -> dict[str, Any]:
    """Milliseconds to the ACK of a message of a connector's quiet stream, beside its busy one.

    Its worker has no Spark: a driver commits every few milliseconds what has come.
    """
    with LossyCable(Weather(loss=loss, delay=DELAY), seed=1) as cable:
        files = Files.make(folder, cable.far_address)
        options = {
            "host": cable.far_address,
            "quic": True,
            "tls_certificate": files.certificate,
            "tls_key": files.key,
            "tls_workers_ca": files.ca,
        }
        alone = json.dumps({"options": options, "batch_seconds": COMMIT_SECONDS})
        command = [*cable.far, sys.executable, "-m", "proving.bench.lone_worker", alone]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            try:
                assert worker.stdout is not None
                address = json.loads(worker.stdout.readline())["address"]
                taken = _client(f"connector-{road}", "quiet", address, files.ca, str(seconds), prefix=cable.near)["ms"]
            finally:
                end(worker)
    return _percentiles(road, loss, taken)


def moved(files: Files, road: str, repetitions: int) -> dict[str, Any]:
    """Milliseconds to the first answer after the client's machine has another address."""
    taken = []
    for number in range(repetitions):
        with (
            LossyCable(Weather(delay=DELAY), seed=number) as cable,
            _server(files, road, cable.far_address, cable.far) as address,
        ):
            taken.append(_client(road, "moved", address, files.ca, prefix=cable.near, ready=cable.move_near)["ms"])
    return Spread.of(taken).to_json()


def datagrams(files: Files, count: int) -> dict[str, Any]:
    """Unreliable messages over a cable that loses some: how many were told to be lost."""
    with (
        LossyCable(Weather(loss=LOSSES[-1], delay=DELAY), seed=2) as cable,
        _server(files, "quic", cable.far_address, cable.far) as address,
    ):
        return {"loss": LOSSES[-1], **_client("quic", "datagrams", address, files.ca, str(count), prefix=cable.near)}


@contextmanager
def _server(files: Files, road: str, host: str, prefix: Sequence[str] = ()) -> Iterator[str]:
    command = [*prefix, sys.executable, "-m", PROGRAM, road, "serve", host, files.certificate, files.key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def _client(
    road: str, verb: str, *arguments: str, prefix: Sequence[str] = (), ready: Callable[[], object] | None = None
) -> dict[str, Any]:
    command = [*prefix, sys.executable, "-m", PROGRAM, road, verb, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        if ready is not None:
            assert client.stdout is not None
            client.stdout.readline()
            ready()
        out, _ = client.communicate("\n", timeout=300)
    if client.returncode:
        raise RuntimeError(f"{' '.join(command)} has ended with {client.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found
