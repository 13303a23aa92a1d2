"""A Prometheus for one test, from Debian's package ``prometheus``.

Where the system has no Prometheus, the package is fetched by apt-get and unpacked below ``build/``; nothing is
installed in the system. ``python -m proving.servers.prometheus`` fetches it in advance.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proving.ports import free_ports
from proving.servers.guard import Guarded
from proving.servers.maven import ROOT

FETCH_SECONDS = 240
ASK_SECONDS = 30.0
PROGRAMS = ("prometheus", "promtool")


class PrometheusMissing(Exception):
    """Prometheus is not installed and cannot be fetched; the message says how to install it."""


def program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``. Raises :class:`PrometheusMissing`."""
    installed = shutil.which(name)
    return installed or str(fetched() / "usr" / "bin" / name)


def fetched() -> Path:
    """The folder with the unpacked package, fetched once per clone. Raises :class:`PrometheusMissing`."""
    folder = ROOT / "build" / "prometheus" / "debian"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    said = _run(part, "apt-get", "download", "prometheus")
    if not list(part.glob("*.deb")):
        # The lists of packages are missing or old.
        _run(part, "apt-get", "update")
        said = _run(part, "apt-get", "download", "prometheus")
    packages = list(part.glob("*.deb"))
    if packages:
        said = _run(part, "dpkg", "-x", packages[0].name, ".")
        packages[0].unlink()
    if not all((part / "usr" / "bin" / name).exists() for name in PROGRAMS):
        shutil.rmtree(part, ignore_errors=True)
        raise PrometheusMissing(
            "the tests of metrics and alerts need Prometheus and promtool, and neither are they on the PATH nor can "
            f"apt-get fetch them; install them (Debian, Ubuntu: apt-get install prometheus): {said}"
        )
    part.rename(folder)


def _run(folder: Path, *command: str) -> str:
    """Run a command; returns the end of its output."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout + done.stderr)[-500:]


def promtool(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool, and return its output. Raises :class:`PrometheusMissing`."""
    return subprocess.run(
        [program("promtool"), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


class PrometheusServer:
    """A Prometheus on a free port of the loopback, with the rules of a file, that scrapes targets every two seconds."""

    def __init__(self, targets: Sequence[str], rules: Path, token: str = "") -> None:
        executable = program("prometheus")
        self._guard = Guarded("prometheus", "TERM")
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        config: dict[str, Any] = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": "wallaroo",
                    "static_configs": [{"targets": list(targets)}],
                    **({"authorization": {"credentials": token}} if token else {}),
                }
            ],
        }
        # JSON is YAML.
        settings = self._guard.directory / "prometheus.yaml"
        settings.write_text(json.dumps(config), encoding="utf-8")
        self._command = [
            executable,
            f"--config.file={settings}",
            f"--storage.tsdb.path={self._guard.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._guard.start(self._command, self._answers)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The present values of an expression. Raises AssertionError with Prometheus' message when it refuses it."""
        answer = self.ask("query", query=expression)
        assert answer["status"] == "success", (expression, answer)
        values: list[dict[str, Any]] = answer["data"]["result"]
        return values

    def ask(self, path: str, **fields: str) -> dict[str, Any]:
        """The answer of an endpoint of its API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=ASK_SECONDS) as response:
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            answer = json.load(error)
        return answer

    def remove(self) -> None:
        """End it and remove its files."""
        self._guard.remove()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1.0):
                return True
        except OSError:
            return False


if __name__ == "__main__":
    fetched()
