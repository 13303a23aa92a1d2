"""The clients' own test suites: fetched by the names of their packages, built, and run against a readable door.

Each is fetched and built once for a clone, in ``build/suites``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from xml.etree import ElementTree

from proving.producers import HERE, built_from
from wallaroo_spark.event_loop import beside

FOLDER = Path(__file__).parents[4] / "build" / "suites"
BUILD_SECONDS = 1500
TEST_SECONDS = 60
"""The longest run of one test. A choice: those that pass take 20 s at most."""
PORT = 29091
"""The first of the five ports that sarama's suite expects its brokers at."""
VERSION = "2.4.0"
"""The version of Kafka whose requests the suites use where they do not ask."""

Run = Callable[[Sequence[str]], dict[str, bool]]
"""Runs tests by their names; returns whether each that was run has passed."""


def librdkafka(away: Event) -> Run:
    """The tests of librdkafka, in the npm package that contains it; each runs in a process of its own."""
    folder = _built(
        "librdkafka",
        ["npm", "pack", "@confluentinc/kafka-javascript@1.10.1"],
        ["sh", "-c", "tar xzf *.tgz --strip-components=3 package/deps/librdkafka"],
        ["./configure", "--disable-sasl", "--disable-zstd", "--disable-curl"],
        ["make", "-j2", "libs"],
        ["make", "-j2", "-C", "tests", "test-runner"],
    )
    tests = folder / "tests"
    (tests / "test.conf").write_text(f"bootstrap.servers=127.0.0.1:{PORT}\n")
    environment = {"LD_LIBRARY_PATH": f"{folder}/src:{folder}/src-cpp", "TEST_KAFKA_VERSION": VERSION}

    def run(names: Sequence[str]) -> dict[str, bool]:
        found = {}
        for name in names:
            output = _output(["./test-runner", "-Q", "-L"], tests, environment | {"TESTS": name[:4]})
            found[name] = re.search(rf"\| {name} +\| +PASSED", re.sub(r"\x1b\[\d+m", "", output)) is not None
        return found

    return run


def franz_go(away: Event) -> Run:
    """The tests of franz-go's package kgo."""
    return _go("kgo", "github.com/twmb/franz-go/pkg/kgo", {"KGO_SEEDS": f"127.0.0.1:{PORT}", "KGO_TEST_RF": "1"})


@contextmanager
def _toxiproxy(away: Event) -> Iterator[str]:
    """The interface of the proxies that sarama's suite has in front of its brokers; they let through all or nothing."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode() if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._answer(200, {"name": self.path.rpartition("/")[2], "listen": "", "upstream": "", "enabled": True})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/reset":
                away.clear()
                self._answer(204, None)
                return
            asked = json.loads(body)
            if "enabled" in asked:
                (away.clear if asked["enabled"] else away.set)()
            self._answer(200, asked)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with beside(server.serve_forever, "toxiproxy", server.shutdown, TEST_SECONDS):
        yield f"http://127.0.0.1:{server.server_address[1]}"


def sarama(away: Event) -> Run:
    """The functional tests of sarama."""

    def run(names: Sequence[str]) -> dict[str, bool]:
        with _toxiproxy(away) as address:
            own = {"TOXIPROXY_ADDR": address, "KAFKA_VERSION": VERSION}
            return _go("sarama", "github.com/IBM/sarama", own, "-tags", "functional")(names)

    return run


def kafka_python(away: Event) -> Run:
    """The tests of kafka-python's producer with a broker. Its archive lacks the module that starts brokers."""
    folder = _built(
        "kafka-python",
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "kafka-python==3.0.12"],
        ["sh", "-c", "tar xzf *.tar.gz --strip-components=1"],
    )
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(
        "class SpawnedService: pass\nclass ExternalService:\n    def __init__(self, host, port): pass\n"
    )

    def run(names: Sequence[str]) -> dict[str, bool]:
        tests = "test/integration/test_producer_integration.py"
        report = folder / "report.xml"
        environment = {
            "PYTHONPATH": str(folder),
            "KAFKA_ROOT": str(folder),
            "KAFKA_VERSION": VERSION,
            "KAFKA_URI": f"tcp://127.0.0.1:{PORT}",
        }
        chosen = [f"{tests}::{name}" for name in names]
        _output([sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *chosen], folder, environment)
        cases = ElementTree.parse(report).iter("testcase")
        return {case.attrib["name"]: case.find("failure") is None and case.find("error") is None for case in cases}

    return run


SUITES: dict[str, Callable[[Event], Run]] = {
    "librdkafka": librdkafka,
    "franz-go": franz_go,
    "sarama": sarama,
    "kafka-python": kafka_python,
}
"""Each is given the event that has the door drop its connections."""


def _go(name: str, package: str, environment: dict[str, str], *flags: str) -> Run:
    module = built_from(HERE / "go", FOLDER, ["go", "mod", "tidy"])
    program = FOLDER / f"{name}.test"
    subprocess.run(
        ["go", "test", "-vet=off", *flags, "-c", "-o", str(program), package],
        cwd=module,
        check=True,
        timeout=BUILD_SECONDS,
    )

    def run(names: Sequence[str]) -> dict[str, bool]:
        found = {}
        for test in names:
            command = [str(program), "-test.v", f"-test.timeout={TEST_SECONDS}s", f"-test.run=^{test}$"]
            found[test] = f"\n--- PASS: {test} " in _output(command, FOLDER, environment)
        return found

    return run


def _output(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a run prints. One that takes too long is ended, and its tests have not passed."""
    done = subprocess.run(
        ["timeout", str(10 * TEST_SECONDS if "pytest" in command else TEST_SECONDS + 10), *command],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode(errors="replace")


def _built(name: str, *steps: list[str]) -> Path:
    """A folder in which these steps were run. One process builds, others wait for it."""
    folder = FOLDER / name
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = FOLDER / f"{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for step in steps:
                subprocess.run(step, cwd=part, check=True, capture_output=True, timeout=BUILD_SECONDS)
            part.rename(folder)
    return folder
