"""The whole installation on one machine: cluster, Redis, driver and senders, each a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark

from proving.chaos.connector import COOKIE_VARIABLE, RECEIVER, REGISTRY_VARIABLE
from proving.chaos.processes import Supervised, Victim, victim
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.observe.collect import Question, RegistryCollector
from wallaroo_spark.observe.receiver import SlotStatus
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.runtime.handle import STANDBY

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "scripts" / "cluster.py"
LEASE_SECONDS = 5.0
LOOK_SECONDS = 1.0
FIRST_SECONDS = 180.0
SLOTS = 2

COOKIE = "a cookie for this run"
COLUMNS = ("instance", "stream", "message_id", "value")

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
    """Starts all processes on entry and ends them on exit. ``senders`` has the programs that send, by their names.
    ``cluster`` is the state directory of a running cluster, which goes on after the run; without it, the run has its
    own cluster. ``columns`` of each row are written, and ``options`` are more options of the receiver. With ``standby``
    a second driver waits to take over.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        cluster: Path | None = None,
        columns: Sequence[str] = COLUMNS,
        options: Mapping[str, Any] | None = None,
        standby: bool = False,
    ) -> None:
        self.directory = directory
        self.cluster = cluster or directory / "cluster"
        self._own_cluster = cluster is None
        self.redis = EmbeddedRedis()
        self.driver: Supervised | None = None
        self.standby: Supervised | None = None
        self._standby = standby
        self.senders: dict[str, Supervised] = {}
        self.driver_lines: list[str] = []
        self._columns = list(columns)
        self._options = {"maxOffsetsPerTrigger": 20_000, **(options or {})}
        self._settings = SETTINGS | dict(settings or {})
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
                cores, memory = ("4", "2g") if self._standby else ("2", "1g")
                self._cluster("start", "--workers", str(SLOTS), "--cores", cores, "--memory", memory)
            url = self._cluster("url").strip()
            self.redis.start()
            started.callback(self.redis.stop)
            started.callback(self._closing.set)
            started.callback(self._stop_all)
            self._start_driver(url)
            self._looker.start()
            self._last = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._last.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of driver and senders."""
        own = {REGISTRY_VARIABLE: self.redis.url, COOKIE_VARIABLE: COOKIE, "PYTHONPATH": str(ROOT)}
        return {**os.environ, **own, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def add_sender(self, name: str, command: Sequence[str], take: Callable[[str], None], *, again: bool = True) -> None:
        """Start a program that sends; ``take`` gets the lines that it prints. See :class:`Supervised`."""
        log = self.directory / "logs" / f"{name}.log"
        self.senders[name] = Supervised(name, command, self.environment, log, take, again=again)
        self.senders[name].start()

    @property
    def all_ended(self) -> bool:
        """Whether all programs that send have ended."""
        return all(known.finished.is_set() for known in self.senders.values())

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
        given = {
            "receiver": RECEIVER,
            "registry": f"env:{REGISTRY_VARIABLE}",
            "cookie": f"env:{COOKIE_VARIABLE}",
            "workers": SLOTS,
            "leaseSeconds": LEASE_SECONDS,
            "checkpoint": f"{self.directory}/checkpoint",
            "sink": {"format": "parquet", "path": f"{self.directory}/rows"},
            "select": self._columns,
            "trigger": {"processingTime": "1 second"},
            **({"standby": True} if self._standby else {}),
            **self._options,
        }
        # JSON is YAML, too.
        file.write_text(json.dumps(given, indent=2), encoding="utf-8")
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", url]
        command += ["--properties-file", str(ROOT / "conf" / "standalone.conf")]
        for name, value in self._settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(ROOT / "jobs" / "receive.py"), str(file), "--every", "2"]
        self.driver = self._supervised("driver", command)
        self.driver.start()
        if self._standby:
            self.standby = self._supervised("standby", command)
            self.standby.start()

    def _supervised(self, name: str, command: Sequence[str]) -> Supervised:
        return Supervised(name, command, self.environment, self.directory / "logs" / f"{name}.log", self._driver_said)

    @property
    def drivers(self) -> dict[str, Supervised]:
        """The drivers by their names."""
        return {one.name: one for one in (self.driver, self.standby) if one is not None}

    def active_driver(self) -> tuple[Supervised, bool] | None:
        """The driver that runs the receiver, and whether another one waits to take over; None while none is known."""
        if self.standby is None:
            return (self.driver, False) if self.driver is not None else None
        with contextlib.suppress(WallarooError), Registry(self.redis.url, RECEIVER, attempts=1) as registry:
            owner, waits = registry.locked_by("receiver"), registry.locked_by(STANDBY)
            with contextlib.suppress(ProcessLookupError):
                session = os.getsid(int(owner.split("/")[1])) if owner else None
                return next(((one, bool(waits)) for one in self.drivers.values() if one.pid == session), None)
        return None

    def _driver_said(self, line: str) -> None:
        self.driver_lines.append(f"{time.strftime('%H:%M:%S')} {line.rstrip()}")

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
        for sender in self.senders.values():
            sender.stop()
        for driver in (self.standby, self.driver):
            if driver is not None:
                driver.stop()
        (self.directory / "driver.txt").write_text("\n".join(self.driver_lines) + "\n", encoding="utf-8")
