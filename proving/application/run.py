"""A run of the random application: start, change and kill at random, wait until all is done, and judge."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import parquet

from proving.application.clients import read_journal
from proving.application.judge import STREAMS, Evidence, Record, judge
from proving.application.schema import RandomSchema
from proving.shop.judge import Verdict
from proving.shop.processes import (
    ROOT,
    VERB,
    Program,
    cluster,
    kill_executor,
    kill_gateway,
    listens,
    pids_of,
)
from wallaroo_spark.client import Backoff, Client
from wallaroo_spark.observe.published import LOCK
from wallaroo_spark.registry import EmbeddedRedis, application_registry
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.runtime.handle import STANDBY
from wallaroo_spark.streams.places import history_of, table_of

GATEWAYS = 2
CLIENTS = ("publisher-1", "publisher-2", "worker-1", "worker-2", "billing", "ledger", "readers")
PROGRESS = 5
"""Batches that are committed between two faults, at least."""
START_SECONDS = 600.0
"""Longest wait for the application's start. A choice: it only ends a start that hangs, also on a slow machine."""
STOP_SECONDS = 120.0
"""Longest wait for the application's end in good order."""
LOOK_SECONDS = 2.0
"""Time between two looks at the tables, at the end."""


@dataclass(frozen=True)
class ApplicationPlan:
    """The settings of a run."""

    output: Path
    """Where all files are written; it is emptied first."""
    minutes: float
    """How long things are published, changed and killed."""
    seed: int
    """Decides what happens, in which order."""
    rate: float
    """Events a second that each publisher publishes."""
    pause: float
    """Seconds between two faults, on average."""
    change: float
    """Seconds between two changes of the schema, on average."""
    limit: float
    """Longest wait, in seconds, without any progress after the last fault."""
    cluster: bool = False
    """Whether Spark runs as a standalone cluster, whose executors are killed too."""
    driver: bool = True
    """Whether the driver is killed, too."""
    standby: bool = False
    """Whether a second driver waits to take over, and only drivers are killed."""
    kills: int = 0
    """The least number of kills. Where the machine is slow, the run takes more than its minutes for them."""


@dataclass
class DriverWait:
    """What followed the kill of a driver, in seconds."""

    standby: bool
    """Whether a standby waited."""
    serving: float | None = None
    """Until a gateway listened again."""
    commit: float | None = None
    """Until the next commit."""


@dataclass
class ApplicationRun:
    """The result of a run."""

    verdict: Verdict
    """The finding of the judge."""
    events: Counter[str] = field(default_factory=Counter)
    """Kills and changes, by their kind."""
    seconds: float = 0.0
    """Length of the run."""
    rest_seconds: float = 0.0
    """Time from the last fault until nothing was left to do."""
    ends: list[str] = field(default_factory=list)
    """Programs that ended without a kill."""
    waits: list[DriverWait] = field(default_factory=list)
    """What followed each kill of a driver."""

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.verdict.broken and not self.ends


class RandomApplication:
    """The programs of one run."""

    def __init__(self, plan: ApplicationPlan, redis: str, say: Callable[[str], None]) -> None:
        self._plan, self._say = plan, say
        self._dice = random.Random(plan.seed)
        self._schema = RandomSchema(self._dice)
        self._state = plan.output / "cluster"
        self.folder = plan.output / "app"
        self.journals = plan.output / "journals"
        first = lasting_port(range(GATEWAYS))
        self.ports = [first + number for number in range(GATEWAYS)]
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.events: Counter[str] = Counter()
        self.ends: list[str] = []
        self._cluster_pids: list[int] = []
        schema = plan.output / "first.yaml"
        schema.write_text(self._schema.first())
        run = [VERB, "run", "--app", str(self.folder), "--name", "rand", "--registry", redis]
        run += ["--gateways", str(GATEWAYS), "--port", str(first), "--lease-seconds", "5", "--move-seconds", "1"]
        run += ["--status-page", "off"]
        self._run = [*run, "--standby"] if plan.standby else run
        self._redis = redis
        self.waits: list[DriverWait] = []
        self._killed_at, self._killed_after = 0.0, 0
        self._first_schema = schema
        self._drivers: list[Program] = []
        self.clients = {role: self._client(role) for role in CLIENTS}

    def _client(self, role: str) -> Program:
        program = [sys.executable, "-m", "proving.application.clients", role, self.address]
        program += [str(self.journals / f"{role}.jsonl"), str(self._plan.seed), str(self._plan.rate)]
        return Program(role, program, self._plan.output / f"{role}.log")

    def start(self) -> None:
        """Start all, and wait until a gateway answers. Raises :class:`TransportError` when none does in time."""
        self.journals.mkdir()
        self._apply(["apply"], self._first_schema.read_text(), "first version")
        command = [*self._run, *self._master()]
        names = ("application", "standby") if self._plan.standby else ("application",)
        self._drivers = [Program(name, command, self._plan.output / f"{name}.log") for name in names]
        for driver in self._drivers:
            driver.start()
        retry = Backoff(give_up_after=START_SECONDS, maximum=1)
        with Client(self.address, retry=retry, timeout=START_SECONDS) as client:
            client.describe()
        for client_program in self.clients.values():
            client_program.start()

    @property
    def kills(self) -> int:
        """Kills until now."""
        return sum(count for what, count in self.events.items() if what.startswith("kills"))

    def disturb(self) -> None:
        """Kill parts and change the schema, at random."""
        plan, dice = self._plan, self._dice
        until = time.monotonic() + plan.minutes * 60
        fault_at = time.monotonic() + plan.pause
        change_at = time.monotonic() + plan.change
        wanted = PROGRESS
        kinds: dict[str, Callable[[], bool]] = {"client": self._kill_client, "gateway": self._kill_gateway}
        if plan.cluster:
            kinds["executor"] = self._kill_executor
        if plan.driver:
            kinds["driver"] = self._kill_driver
        if plan.standby:
            kinds = {"driver": self._kill_driver}
        while time.monotonic() < until or self.kills < plan.kills:
            self._restart()
            self._measure()
            now = time.monotonic()
            if now >= change_at:
                self._change()
                change_at = now + dice.expovariate(1 / plan.change)
            # On a slow machine a start takes longer than a pause, and nothing would ever be committed.
            if now >= fault_at and self._committed() >= wanted:
                kind = dice.choice([*kinds])
                if kinds[kind]():
                    self.events[f"kills: {kind}"] += 1
                    self._say(f"killed: {kind}")
                    wanted = self._committed() + PROGRESS
                    fault_at = time.monotonic() + dice.expovariate(1 / plan.pause)
            time.sleep(0.2)

    def settle(self) -> float:
        """No more faults: declare everything, end the publishers, and wait. Returns the seconds until all was done."""
        began = time.monotonic()
        self._apply(["apply"], self._schema.restore(), "everything declared")
        (self.journals / "stop.jsonl").write_text('{"kind": "stop"}\n')
        until, before = time.monotonic() + self._plan.limit, ""
        while time.monotonic() < until:
            self._restart()
            evidence = self.evidence()
            verdict = judge(evidence)
            ended = all(
                any(line["kind"] == "end" for line in evidence.journals[role]) for role in CLIENTS if "publ" in role
            )
            if ended and not verdict.broken:
                break
            found = f"{sorted(verdict.counts.items())} {len(evidence.journals['billing'])}"
            if found != before:
                before, until = found, time.monotonic() + self._plan.limit
                self._say(f"{len(verdict.broken)} things are open: {verdict.broken[:1]}"[:200])
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began

    def stop(self) -> None:
        """End all programs."""
        for client in self.clients.values():
            client.kill()
        # The standby first, and before it waits it may be starting Java.
        for driver in reversed(self._drivers):
            if (status := driver.stop(STOP_SECONDS)) not in (0, *((130, 143) if self._plan.standby else ())):
                self.ends.append(f"{driver.name}, at the end (status {status})")
        if (self._state / "cluster.json").exists():
            cluster(self._state, "stop")

    def evidence(self) -> Evidence:
        """The tables and the journals."""
        return Evidence(
            {stream: _records(Path(table_of(str(self.folder), stream))) for stream in STREAMS},
            _history(Path(history_of(str(self.folder)))),
            {role: list(read_journal(self.journals / f"{role}.jsonl")) for role in CLIENTS},
            self._schema.stages,
        )

    def _committed(self) -> int:
        """The newest committed batch."""
        commits = (self.folder / "checkpoint" / "commits").glob("*")
        return max((int(file.name) for file in commits if file.name.isdecimal()), default=0)

    def _change(self) -> None:
        what, words, text = self._schema.change()
        self._apply(words, text, what)

    def _apply(self, words: list[str], text: str, what: str) -> None:
        command = [VERB, words[0], "--app", str(self.folder), "--json", *words[1:], *(["-"] if text else [])]
        while True:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode == 0:
                break
            self._say(f"{what}: {done.stderr.strip()[-300:]}")
            time.sleep(1)
        version = json.loads(done.stdout.splitlines()[-1])["version"]
        self._schema.applied(version)
        self.events[what] += 1
        self._say(f"version {version}: {what}")

    def _restart(self) -> None:
        for program in (*self._drivers, *self.clients.values()):
            status = program.status
            if status is None or (status == 0 and program.name.startswith("publisher")):
                continue
            self.ends.append(f"{program.name} (status {status})")
            self._say(f"{program.name} has ended (status {status})")
            program.start()

    def _kill_client(self) -> bool:
        client = self._dice.choice([*self.clients.values()])
        client.kill()
        client.start()
        return True

    def _kill_gateway(self) -> bool:
        port = self._dice.choice(self.ports)
        return listens(port) and kill_gateway(port, [*(one.pid for one in self._drivers), *self._cluster_pids])

    def _kill_executor(self) -> bool:
        return any(map(listens, self.ports)) and kill_executor(self._cluster_pids)

    def _kill_driver(self) -> bool:
        if not any(map(listens, self.ports)):
            return False
        active, standby = self._drivers[0], False
        if self._plan.standby:
            with application_registry(self._redis, "rand") as registry:
                owner, standby = registry.locked_by(LOCK) or "", registry.locked_by(STANDBY) is not None
            of = [one for one in self._drivers if f"/{one.pid}/" in owner]
            # Without a standby there is nothing to see here.
            if not of or not standby:
                return False
            active = of[0]
        active.kill()
        self.waits.append(DriverWait(standby))
        self._killed_at, self._killed_after = time.monotonic(), self._committed()
        active.start()
        return True

    def _measure(self) -> None:
        """Note what the last kill of a driver was followed by."""
        wait, passed = self.waits[-1] if self.waits else None, round(time.monotonic() - self._killed_at, 1)
        if wait is None or wait.commit is not None:
            return
        if wait.serving is None and any(map(listens, self.ports)):
            wait.serving = passed
        if self._committed() > self._killed_after:
            wait.commit = passed

    def _master(self) -> list[str]:
        settings = ["spark.driver.host=127.0.0.1"]
        if not self._plan.cluster:
            return [word for one in settings for word in ("--conf", one)]
        self._say("starting a Spark cluster …")
        cores, memory = ("6", "2g") if self._plan.standby else ("3", "1g")
        master = cluster(self._state, "start", "--workers", "2", "--cores", cores, "--memory", memory)
        self._cluster_pids = pids_of(json.loads((self._state / "cluster.json").read_text()))
        settings += ["spark.executor.memory=768m", f"spark.executorEnv.PYTHONPATH={ROOT}"]
        settings += ["spark.cores.max=6", "spark.executor.cores=3"]
        return ["--master", master, *(word for one in settings for word in ("--conf", one))]


def run(plan: ApplicationPlan, say: Callable[[str], None]) -> ApplicationRun:
    """Run the application and judge it. ``say`` shows a line."""
    shutil.rmtree(plan.output, ignore_errors=True)
    plan.output.mkdir(parents=True)
    began = time.monotonic()
    with EmbeddedRedis() as redis:
        application = RandomApplication(plan, redis.url, say)
        try:
            say("starting the application …")
            application.start()
            say(f"gateways at {application.address}")
            application.disturb()
            rest = application.settle()
        finally:
            application.stop()
    verdict = judge(application.evidence())
    return ApplicationRun(
        verdict, application.events, time.monotonic() - began, rest, application.ends, application.waits
    )


def _records(place: Path) -> list[Record]:
    found = []
    for file in sorted(place.glob("partition=*/*.parquet")):
        number = int(file.parent.name.partition("=")[2])
        found += [
            Record(
                (number, row["offset"]),
                row["id"],
                row["data"] or b"",
                row["written_at"].timestamp(),
                dict(row["extensions"] or ()),
            )
            for row in _rows(file)
        ]
    return found


def _history(place: Path) -> list[dict[str, Any]]:
    """The rows in the order of their batches; those of one batch are in the order of an instance's life."""
    rows = [row for file in place.glob("*.parquet") for row in _rows(file)]
    order = {kind: number for number, kind in enumerate(("skipped", "began", "nacked", "output", "pointer", "ended"))}
    return sorted(rows, key=lambda row: (row["at"], order[row["kind"]]))


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = parquet.ParquetFile(file).read().to_pylist()
    except FileNotFoundError:
        # A file of a stream that was deleted meanwhile.
        return []
    return rows
