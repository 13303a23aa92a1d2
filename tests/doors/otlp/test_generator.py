"""``telemetrygen``, unchanged, against a real worker."""

from __future__ import annotations

import subprocess

import pytest

from proving.producers import telemetry
from tests.doors.otlp.requests import COOKIE, committed, grpc_of, http_of, running
from tests.doors.otlp.test_exporters import rows
from tests.waiting import SECONDS

pytestmark = pytest.mark.long
RECORDS = 200
EACH = {"traces": 2, "logs": 1, "metrics": 1}
"""What it makes of one of these: a trace has a span and its child."""


@pytest.mark.parametrize("signal", EACH)
@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_all_that_telemetrygen_sends_is_in_the_table(transport: str, signal: str) -> None:
    with running(cookie=COOKIE) as worker, worker.committing():
        place = grpc_of(worker) if transport == "grpc" else http_of(worker).removeprefix("http://")
        command = [telemetry.generator(), signal, "--otlp-endpoint", place, "--otlp-insecure"]
        command += ["--otlp-header", f'authorization="Bearer {COOKIE}"', f"--{signal}", str(RECORDS), "--rate", "0"]
        command += ["--otlp-http"] if transport == "http" else []
        subprocess.run(command, check=True, timeout=SECONDS)
    found = rows(worker, signal)
    assert len(found) == RECORDS * EACH[signal]
    assert {row["service_name"] for row in found} == {"telemetrygen"}
    assert {row["instance"] for row in committed(worker)} == {"otlp/telemetrygen"}
