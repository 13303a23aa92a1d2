"""The whole installation on one machine: cluster, Redis, driver and connectors, each a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil
import pyspark

from proving.chaos.connector import COOKIE_VARIABLE, RECEIVER, REGISTRY_VARIABLE
from proving.chaos.processes import Supervised, Victim, victim
from wallaroo_spark.observe.collect import Question, RegistryCollector
from wallaroo_spark.observe.receiver import SlotStatus
from wallaroo_spark.registry import EmbeddedRedis, Registry

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "scripts" / "cluster.py"
LEASE_SECONDS = 5.0
LOOK_SECONDS = 1.0
FIRST_SECONDS = 180.0
SLOTS = 2

YAML = """
receiver: {receiver}
registry: env:{registry}
cookie: env:{cookie}
workers: {slots}
leaseSeconds: {lease}
maxOffsetsPerTrigger: {most}
checkpoint: {directory}/checkpoint
sink: {{format: parquet, path: {directory}/rows}}
select: [instance, stream, message_id, value]
trigger: {{processingTime: 1 second}}
"""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# The judge reads all plans and commits after the run, so none of them is purged.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Java is started often here, on few cores, so a slow compiler does not pay.
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    # The executors run this checkout, even where their Python has another copy of the package.
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.sql.streaming.minBatchesToRetain": "1000000",
    "spark.sql.streaming.fileSink.log.deletion": "false",
}


class Stage:
    """Starts all processes on entry and ends them on exit. ``acks`` has, for each file, the acknowledgements that its
    connector saw: (seconds of the wall clock, reference). ``cluster`` is the state directory of a running cluster,
    which goes on after the run; without it, the run has its own cluster.
    """

    def __init__(
        self,
        directory: Path,
        *,
        most: int = 20_000,
        settings: dict[str, str] | None = None,
        cluster: Path | None = None,
    ) -> None:
        self.directory = directory
        self.cluster = cluster or directory / "cluster"
        self._own_cluster = cluster is None
        self.redis = EmbeddedRedis()
        self.driver: Supervised | None = None
        self.connectors: dict[str, Supervised] = {}
        self.acks: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.driver_lines: list[str] = []
        self._most = most
        self._settings = SETTINGS | (settings or {})
        self._workers: dict[int, Victim] = {}
        self._slots: tuple[SlotStatus, ...] = ()
        self._closing = threading.Event()
        self._looker = threading.Thread(target=self._look, daemon=True)
        self._last = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as started:
            (self.directory / "logs").mkdir(parents=True, exist_ok=True)
            if self._own_cluster:
                started.callback(self._cluster, "stop")
                self._cluster("start", "--workers", str(SLOTS), "--cores", "2", "--memory", "1g")
            url = self._cluster("url").strip()
            self.redis.start()
            started.callback(self.redis.stop)
            started.callback(self._closing.set)
            self._start_driver(url)
            started.callback(self._stop_all)
            self._looker.start()
            self._last = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._last.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of driver and connectors."""
        own = {REGISTRY_VARIABLE: self.redis.url, COOKIE_VARIABLE: "a cookie for this run", "PYTHONPATH": str(ROOT)}
        return {**os.environ, **own, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def add_connector(self, instance: str, revision: str, began: float, interval: float, files: list[Path]) -> None:
        """Start a connector that sends these files."""
        module = [sys.executable, "-m", "proving.chaos.connector"]
        command = [*module, instance, revision, repr(began), repr(interval), *map(str, files)]
        log = self.directory / "logs" / f"{instance}.log"
        self.connectors[instance] = Supervised(instance, command, self.environment, log, self._acknowledged)
        self.connectors[instance].start()

    def await_ready(self) -> None:
        """Wait until every slot is served and the query has run its first, empty batch. Raises :class:`TimeoutError`
        with the driver's last lines.
        """
        until = time.monotonic() + FIRST_SECONDS
        first = self.directory / "checkpoint" / "commits" / "0"
        while len(self.workers()) < SLOTS or not first.exists():
            if time.monotonic() > until:
                raise TimeoutError(
                    f"the fleet was not ready after {FIRST_SECONDS:.0f} s: slots {self._slots}; "
                    f"the driver's last lines: {self.driver_lines[-5:]}"
                )
            time.sleep(0.2)

    def workers(self) -> list[Victim]:
        """The known workers' Python processes that are alive."""
        return [known for _, known in sorted(self._workers.items()) if known.process() is not None]

    def executors(self) -> list[Victim]:
        """The executors' Java processes: children of the cluster's worker daemons."""
        return self._below("worker", "CoarseGrainedExecutorBackend")

    def _below(self, daemons: str, word: str) -> list[Victim]:
        found = []
        saved = json.loads((self.cluster / "cluster.json").read_text(encoding="utf-8"))
        for daemon in saved["daemons"]:
            if not daemon["name"].startswith(daemons):
                continue
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(daemon["pid"]).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if word in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                            found.append(Victim(f"executor of {daemon['name']}", child.pid, child.create_time()))
        return found

    def _cluster(self, *arguments: str) -> str:
        command = [sys.executable, str(CLUSTER), "--state", str(self.cluster), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
        if done.returncode:
            raise RuntimeError(f"scripts/cluster.py failed: {done.stderr.strip()}")
        return done.stdout

    def _start_driver(self, url: str) -> None:
        file = self.directory / "receive.yaml"
        file.write_text(
            YAML.format(
                receiver=RECEIVER,
                registry=REGISTRY_VARIABLE,
                cookie=COOKIE_VARIABLE,
                slots=SLOTS,
                lease=LEASE_SECONDS,
                most=self._most,
                directory=self.directory,
            ),
            encoding="utf-8",
        )
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", url]
        command += ["--properties-file", str(ROOT / "conf" / "standalone.conf")]
        for name, value in self._settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(ROOT / "jobs" / "receive.py"), str(file), "--every", "2"]
        log = self.directory / "logs" / "driver.log"
        self.driver = Supervised("driver", command, self.environment, log, self._driver_said)
        self.driver.start()

    def _driver_said(self, line: str) -> None:
        self.driver_lines.append(f"{time.strftime('%H:%M:%S')} {line.rstrip()}")

    def _acknowledged(self, line: str) -> None:
        said = json.loads(line)
        self.acks[said["file"]].append((said["time"], said["acknowledged"]))

    def _look(self) -> None:
        """Note the workers' processes regularly, so that they are known while Redis does not answer."""
        with (
            Registry(self.redis.url, RECEIVER, attempts=1) as registry,
            RegistryCollector(registry, RECEIVER) as collector,
        ):
            while not self._closing.wait(LOOK_SECONDS):
                found = collector.status(Question(most=0))
                if found.registry_error:
                    continue
                self._slots = found.slots
                for slot in found.slots:
                    known = victim(f"worker of slot {slot.slot}", slot.pid) if slot.answers and slot.pid else None
                    if known is not None:
                        self._workers[slot.slot] = known

    def _stop_all(self) -> None:
        for connector in self.connectors.values():
            connector.stop()
        assert self.driver is not None
        self.driver.stop()
        (self.directory / "driver.txt").write_text("\n".join(self.driver_lines) + "\n", encoding="utf-8")
