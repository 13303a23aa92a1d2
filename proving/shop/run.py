"""A run of the shop: start everything, publish orders, kill parts at random, wait until all is done, and judge."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proving.shop.judge import Verdict, judge
from proving.shop.processes import (
    EXAMPLE,
    ROOT,
    VERB,
    Program,
    cluster,
    kill_executor,
    kill_gateway,
    listens,
    pids_of,
)
from proving.shop.tables import read_history, read_streams
from wallaroo_spark.client import AsyncClient, Backoff, Client, Event
from wallaroo_spark.errors import ConfigurationError, TransportError
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port

GATEWAYS = 2
UNPAYABLE = 1000
"""The price that the bank refuses; see ``examples/shop/workers.py``."""
PUBLISHED_TOGETHER = 20
"""Orders that are published at the same time."""
ATTEMPTS = 15
"""Requests for an order until its loss is left to the judge."""
TIMEOUT_SECONDS = 120.0
"""How long a request may take. A choice: then the same order is published again, as a program would do it."""
START_SECONDS = 600.0
"""Longest wait for the application's start. A choice: it only ends a start that hangs, also on a slow machine."""
STOP_SECONDS = 120.0
"""Longest wait for the application's end in good order."""
LOOK_SECONDS = 1.0
"""Time between two looks at the tables."""
SAY_SECONDS = 5.0
"""Least time between two lines of progress."""


@dataclass(frozen=True)
class ShopPlan:
    """The settings of a run."""

    output: Path
    """Where all files are written; it is emptied first."""
    orders: int
    """Number of orders; every tenth cannot be paid."""
    kills: int
    """Number of kills."""
    seed: int
    """Decides what is killed, in which order."""
    pause: float
    """Seconds between two kills."""
    limit: float
    """Longest wait, in seconds, in which nothing is done after the last kill and the last order."""
    workers: int = 2
    """Number of worker programs in Python."""
    javascript: bool = False
    """Whether the stage ``ship`` is also worked on in JavaScript. Without npm this is left out, and said."""
    cluster: bool = False
    """Whether Spark runs as a standalone cluster, whose executors are killed too."""
    driver: bool = True
    """Whether the driver is killed, too."""


@dataclass
class ShopRun:
    """The result of a run."""

    verdict: Verdict
    """The finding of the judge."""
    kills: Counter[str] = field(default_factory=Counter)
    """Number of kills, by the killed part."""
    seconds: float = 0.0
    """Length of the run."""
    complete: bool = False
    """Whether all was done within the limit."""
    ends: list[str] = field(default_factory=list)
    """Programs that ended without a kill."""

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return self.complete and not self.verdict.broken and not self.ends


NAMED = {
    "worker in Python": "a worker in Python",
    "worker in JavaScript": "the worker in JavaScript",
    "gateway": "a gateway",
    "executor": "an executor",
    "driver": "the driver",
}
"""The parts that are killed, as a line of progress says it."""


class Shop:
    """The programs of one run."""

    def __init__(self, plan: ShopPlan, redis: str, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._random = random.Random(plan.seed)
        self._state = plan.output / "cluster"
        self.folder = plan.output / "app"
        first = lasting_port((0, GATEWAYS - 1))
        self.ports = [first + number for number in range(GATEWAYS)]
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.kills: Counter[str] = Counter()
        self._again = 0
        self._said = 0.0
        self.ends: list[str] = []
        self._cluster_pids: list[int] = []
        self.javascript: list[Program] = []
        if plan.javascript:
            if npm := shutil.which("npm"):
                self.javascript.append(self._javascript(npm))
            else:
                say("npm is not here, so the stage ship is worked on in Python alone")
        run = [VERB, "run", "--app", str(self.folder), "--name", "shop", "--registry", redis]
        run += ["--gateways", str(GATEWAYS), "--port", str(first), "--lease-seconds", "5", "--move-seconds", "1"]
        run += ["--schema", str(EXAMPLE / "shop.yaml")]
        self._run = run
        self.application = Program("application", run, plan.output / "application.log")
        worker = [sys.executable, str(EXAMPLE / "workers.py"), self.address]
        self.workers = [
            Program(f"worker {number}", worker, plan.output / f"worker-{number}.log") for number in range(plan.workers)
        ]

    def start(self) -> None:
        """Start all, and wait until a gateway answers. Raises :class:`TransportError` when none does in time."""
        self.application = Program("application", [*self._run, *self._master()], self._plan.output / "application.log")
        self.application.start()
        retry = Backoff(give_up_after=START_SECONDS, maximum=1)
        with Client(self.address, retry=retry, timeout=START_SECONDS) as client:
            client.describe()
        for worker in (*self.workers, *self.javascript):
            worker.start()

    def publish(self) -> None:
        """Publish the orders, some at the same time; an order whose answer is lost is published again."""
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        room = asyncio.Semaphore(PUBLISHED_TOGETHER)
        span = self._plan.kills * self._plan.pause
        begins = [random.Random(f"{self._plan.seed} {order}").uniform(0, span) for order in range(self._plan.orders)]
        retry = Backoff(give_up_after=TIMEOUT_SECONDS, maximum=1)
        async with AsyncClient(self.address, source="/shop/web", timeout=TIMEOUT_SECONDS, retry=retry) as client:

            async def one(order: int) -> None:
                await asyncio.sleep(begins[order - 1])
                async with room:
                    await self._publish_order(client, order)

            await asyncio.gather(*(one(order) for order in range(1, self._plan.orders + 1)))

    async def _publish_order(self, client: AsyncClient, order: int) -> None:
        price = UNPAYABLE if order in self.unpayable() else order
        event = Event("shop.order.created", {"order": order, "price": price}, id=f"order-{order}")
        durability = "received" if order % 3 == 0 else "committed"
        for _ in range(ATTEMPTS):
            try:
                await client.publish("shop/orders", event, durability=durability)
                return
            except TransportError as error:
                self._again += 1
                self._progress(f"orders published again: {self._again}; the last time: {error.message}")

    def faults(self, publishing: threading.Thread) -> None:
        """Kill parts at random, while orders are published and behind that."""
        kinds: dict[str, Callable[[], bool]] = {
            "worker in Python": lambda: self._kill_worker(self.workers),
            "gateway": self._kill_gateway,
        }
        if self.javascript:
            kinds["worker in JavaScript"] = lambda: self._kill_worker(self.javascript)
        if self._plan.cluster:
            kinds["executor"] = self._kill_executor
        if self._plan.driver:
            kinds["driver"] = self._kill_driver
        order = [self._random.choice(list(kinds)) for _ in range(max(0, self._plan.kills - len(kinds)))]
        order += list(kinds)[: self._plan.kills]
        self._random.shuffle(order)
        for kind in order:
            time.sleep(self._plan.pause * (0.5 + self._random.random()))
            if self._killed(kinds[kind]):
                self.kills[kind] += 1
                self._say(f"killed {NAMED[kind]}")
        publishing.join()

    def _killed(self, kill: Callable[[], bool]) -> bool:
        """Kill a part of a shop whose gateways are there; False when there was no such part for long."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            self._restart()
            if all(listens(port) for port in self.ports) and kill():
                return True
            time.sleep(LOOK_SECONDS)
        return False

    def _progress(self, text: str) -> None:
        """Say something that is not news for long."""
        if time.monotonic() - self._said > SAY_SECONDS:
            self._said = time.monotonic()
            self._say(text)

    def wait(self) -> bool:
        """Wait until every order has its end in the tables; False when nothing has changed there for the limit."""
        orders = self._plan.orders
        bad = len(self.unpayable())
        until = time.monotonic() + self._plan.limit
        before: tuple[object, ...] = ()
        while time.monotonic() < until:
            self._restart()
            ended = Counter(row.pipeline for row in read_history(self.folder) if row.kind == "ended")
            streams = {name: len(records) for name, records in read_streams(self.folder).items()}
            whole = streams["shop/orders"] >= orders and streams["shop/shipments"] >= orders - bad
            if (
                ended["shop/fulfil"] >= orders
                and ended["shop/compensate"] >= bad
                and whole
                and (streams["shop/returns"] >= bad and streams["shop/receipts"] >= orders - bad)
            ):
                return True
            found = (*ended.items(), *streams.items())
            if found != before:
                before, until = found, time.monotonic() + self._plan.limit
                self._progress(f"{ended['shop/fulfil']} of {orders} orders have ended")
            time.sleep(LOOK_SECONDS)
        return False

    def unpayable(self) -> set[int]:
        """The orders that cannot be paid."""
        return {order for order in range(1, self._plan.orders + 1) if order % 10 == 0}

    def stop(self) -> None:
        """End all programs."""
        for worker in (*self.workers, *self.javascript):
            worker.kill()
        status = self.application.stop(STOP_SECONDS)
        if status != 0:
            self.ends.append(f"application, at the end (status {status})")
        if (self._state / "cluster.json").exists():
            cluster(self._state, "stop")

    def _restart(self) -> None:
        for program in (self.application, *self.workers, *self.javascript):
            if (status := program.status) is not None:
                self.ends.append(f"{program.name} (status {status})")
                program.start()

    def _kill_worker(self, workers: Sequence[Program]) -> bool:
        worker = self._random.choice(workers)
        worker.kill()
        worker.start()
        return True

    def _kill_gateway(self) -> bool:
        return kill_gateway(self._random.choice(self.ports), [self.application.pid, *self._cluster_pids])

    def _kill_executor(self) -> bool:
        return kill_executor(self._cluster_pids)

    def _kill_driver(self) -> bool:
        self.application.kill()
        self.application.start()
        return True

    def _master(self) -> list[str]:
        if not self._plan.cluster:
            return []
        self._say("starting a Spark cluster …")
        master = cluster(self._state, "start", "--workers", "2", "--cores", "3", "--memory", "1g")
        state = json.loads((self._state / "cluster.json").read_text(encoding="utf-8"))
        self._cluster_pids = pids_of(state)
        # Executors do not inherit this program's path.
        path = f"spark.executorEnv.PYTHONPATH={ROOT}"
        settings = ("spark.executor.memory=768m", "spark.driver.host=127.0.0.1", path)
        return ["--master", master, *(word for one in settings for word in ("--conf", one))]

    def _javascript(self, npm: str) -> Program:
        place = self._plan.output / "node"
        place.mkdir()
        command = [npm, "install", "--no-audit", "--no-fund", "@grpc/grpc-js", "@grpc/proto-loader"]
        self._say("installing the packages of the worker in JavaScript …")
        installed = subprocess.run(command, cwd=place, check=False, capture_output=True, text=True, timeout=300)
        if installed.returncode:
            raise ConfigurationError(
                f"npm could not install the packages of the worker in JavaScript: {installed.stderr.strip()[-300:]}; "
                "give --no-javascript to run without it"
            )
        protos = str(ROOT / "wallaroo_spark" / "api")
        worker = ["node", str(EXAMPLE / "ship.mjs"), protos, self.address]
        return Program("worker in JavaScript", worker, self._plan.output / "worker-javascript.log", place)


def run(plan: ShopPlan, say: Callable[[str], None]) -> ShopRun:
    """Run the shop and judge it. ``say`` shows a line."""
    shutil.rmtree(plan.output, ignore_errors=True)
    plan.output.mkdir(parents=True)
    began = time.monotonic()
    with EmbeddedRedis() as redis:
        shop = Shop(plan, redis.url, say)
        try:
            say("starting the application …")
            shop.start()
            say(f"gateways at {shop.address}; publishing {plan.orders} orders …")
            publishing = threading.Thread(target=shop.publish, name="publisher", daemon=True)
            publishing.start()
            shop.faults(publishing)
            complete = shop.wait()
        finally:
            shop.stop()
    verdict = judge(range(1, plan.orders + 1), read_history(shop.folder), read_streams(shop.folder), shop.unpayable())
    return ShopRun(verdict, shop.kills, time.monotonic() - began, complete, shop.ends)
