"""A Prometheus for one test, from Debian's package ``prometheus``.

Where the system has no Prometheus, the package is fetched by apt-get and unpacked below ``build/``.
``python -m proving.servers.prometheus`` fetches it in advance.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proving.servers.guard import Guarded, GuardedServer
from proving.servers.packages.debian import unpacked
from wallaroo_spark.registry.embedded import lasting_port

ASK_SECONDS = 30.0
PROGRAMS = ("prometheus", "promtool")


def program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``. Raises :class:`PackageUnfetched`."""
    installed = shutil.which(name)
    return installed or str(fetched() / "usr" / "bin" / name)


def fetched() -> Path:
    """The folder with the unpacked package. Raises :class:`PackageUnfetched`."""
    return unpacked("prometheus", [f"usr/bin/{name}" for name in PROGRAMS])


def promtool(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool, and return its output. Raises :class:`PackageUnfetched`."""
    return subprocess.run(
        [program("promtool"), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


class PrometheusServer(GuardedServer):
    """A Prometheus on a free port of the loopback, with the rules of a file, that scrapes targets every two seconds."""

    def __init__(self, targets: Sequence[str], rules: Path, token: str = "") -> None:
        executable = program("prometheus")
        self._guard = Guarded("prometheus", "TERM")
        port = lasting_port()
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

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1.0):
                return True
        except OSError:
            return False


if __name__ == "__main__":
    fetched()
