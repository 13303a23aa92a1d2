"""A standalone Spark cluster on this machine, for trials and tests: one master and some workers, a process each.

Everything listens on loopback, on ports that the system chooses. What was started is written down in a state directory
(``--state``, else ``$WALLAROO_CLUSTER_DIR``, else ``.cluster`` in the repository) together with the logs, and ``stop``
ends exactly that: a process is known by its id and the time it started, so a recycled id is never mistaken for it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.1

Found = TypeVar("Found")

STATE_FILE = "cluster.json"
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"

# The master tells its ports nowhere but in its log.
MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
MASTER_UI = re.compile(r"MasterWebUI .*started at (http://\S+)")

# The REST submission server would take a fixed port, and nothing here submits through it.
DEFAULTS = "spark.master.rest.enabled false\n"
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


class ClusterError(Exception):
    """Something that the person at the keyboard can act on; shown as one sentence."""


@dataclass(frozen=True)
class Daemon:
    """One started process: ``start`` is the system's own stamp of when, compared as text."""

    name: str
    pid: int
    start: str

    def runs(self) -> bool:
        """Whether this very process is still there; another one under the same id does not count."""
        return start_stamp(self.pid) == self.start

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this very process, or nothing when it has gone."""
        if self.runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(frozen=True)
class Cluster:
    """The record that ``start`` has written: addresses, and the processes in the order in which they were started."""

    url: str
    ui: str
    daemons: tuple[Daemon, ...]


def start_stamp(pid: int) -> str | None:
    """When the process started, as text that is only good for comparison; None when it has ended.

    A process that has ended but was not yet collected by its parent counts as ended.
    """
    try:
        # The command's name stands in parentheses and may hold anything; state and start time follow it.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    # Where there is no /proc, ps knows the same to the second.
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = shown.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def read_state(state: Path) -> Cluster | None:
    """The cluster that the state directory tells of, or None when it tells of none."""
    try:
        saved: dict[str, Any] = json.loads((state / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Cluster(saved["url"], saved["ui"], tuple(Daemon(**daemon) for daemon in saved["daemons"]))


def write_state(state: Path, cluster: Cluster) -> None:
    """Write the cluster down in one step, so that no reader ever sees half of it."""
    draft = state / f"{STATE_FILE}.new"
    draft.write_text(json.dumps(asdict(cluster), indent=2), encoding="utf-8")
    draft.replace(state / STATE_FILE)


@contextlib.contextmanager
def alone(state: Path) -> Iterator[None]:
    """Hold the state directory for one start or stop at a time."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def spark_home() -> Path:
    """The Spark that is bundled with the pyspark of the Python that runs this."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ClusterError(f"{sys.executable} has no pyspark; run ./scripts/setup and use ./scripts/cluster")
    return Path(found.origin).parent


def environment(state: Path) -> dict[str, str]:
    """The environment of every process: this Python and Spark, loopback, and no Spark settings of the user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    kept.pop("PYTHONPATH", None)
    kept.pop("PYTHONHOME", None)
    return kept | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(state / "conf"),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_PUBLIC_DNS": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(state / "local"),
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
    }


def launch(state: Path, name: str, arguments: list[str]) -> Daemon:
    """Start one process of the cluster in a session of its own, its output going to ``logs/<name>.log``."""
    with (state / "logs" / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(spark_home() / "bin" / "spark-class"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(state),
            cwd=state,
            start_new_session=True,
        )
    stamp = start_stamp(process.pid)
    if stamp is None:
        raise ClusterError(f"{name} ended at once{log_tail(state, name)}")
    return Daemon(name, process.pid, stamp)


def log_tail(state: Path, name: str, lines: int = 15) -> str:
    """The end of a log, ready to be put behind a sentence."""
    log = state / "logs" / f"{name}.log"
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return f"; the end of {log}:\n" + "\n".join(f"    {line}" for line in last)


def wait_for(what: str, look: Callable[[], Found | None], state: Path, daemons: list[Daemon]) -> Found:
    """Look again and again until something is found; give up when a process has ended or the time is over."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = look()
        if found is not None:
            return found
        for daemon in daemons:
            if not daemon.runs():
                raise ClusterError(f"{daemon.name} ended before {what}{log_tail(state, daemon.name)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {START_SECONDS:.0f} s for {what}{log_tail(state, daemons[-1].name)}")
        time.sleep(POLL_SECONDS)


def find_addresses(state: Path) -> tuple[str, str] | None:
    """The master's URL and that of its web UI, once its log tells them."""
    log = (state / "logs" / "master.log").read_text(encoding="utf-8", errors="replace")
    url, ui = MASTER_URL.search(log), MASTER_UI.search(log)
    return (url[1], ui[1]) if url and ui else None


def registered(ui: str) -> list[dict[str, Any]]:
    """The workers that the master counts as alive; none while it does not answer."""
    # A proxy meant for the internet has no business between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{ui}/json/", timeout=5) as answer:
            workers = json.load(answer)["workers"]
    except (urllib.error.URLError, OSError, ValueError):
        return []
    return [worker for worker in workers if worker["state"] == "ALIVE"]


def prepare(state: Path) -> None:
    """Make the directories a new cluster writes to, without the logs and work files of the one before."""
    for name in ("logs", "work", "local", "conf"):
        shutil.rmtree(state / name, ignore_errors=True)
        (state / name).mkdir(parents=True)
    (state / "conf" / "spark-defaults.conf").write_text(DEFAULTS, encoding="utf-8")
    (state / "conf" / "log4j2.properties").write_text(LOGGING, encoding="utf-8")


def start(state: Path, workers: int, cores: int, memory: str) -> None:
    """Start a master and its workers, and print the URL once all of them are registered; all or nothing."""
    with alone(state):
        before = read_state(state)
        if before and any(daemon.runs() for daemon in before.daemons):
            raise ClusterError(f"a cluster runs already in {state}; stop it first: ./scripts/cluster stop")
        prepare(state)
        daemons: list[Daemon] = []
        try:
            url = bring_up(state, daemons, workers, cores, memory)
        except BaseException:
            # Also on an interrupt: a start that did not finish leaves nothing behind.
            end(daemons)
            (state / STATE_FILE).unlink(missing_ok=True)
            raise
    print(url)


def bring_up(state: Path, daemons: list[Daemon], workers: int, cores: int, memory: str) -> str:
    """Start every process, adding each to ``daemons`` and to the state file at once; returns the master's URL."""
    daemons.append(launch(state, "master", [MASTER_CLASS, "--host", LOOPBACK, "--port", "0", "--webui-port", "0"]))
    write_state(state, Cluster("", "", tuple(daemons)))
    url, ui = wait_for("the master listens", lambda: find_addresses(state), state, daemons)
    for number in range(1, workers + 1):
        options = ["--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(state / "work")]
        options += ["--cores", str(cores), "--memory", memory]
        daemons.append(launch(state, f"worker-{number}", [WORKER_CLASS, *options, url]))
        write_state(state, Cluster(url, ui, tuple(daemons)))
    wait_for(
        f"all {workers} workers are registered",
        lambda: True if len(registered(ui)) >= workers else None,
        state,
        daemons,
    )
    return url


def end(daemons: list[Daemon]) -> None:
    """End the processes, workers before their master; a process that does not end on request is killed."""
    for daemon in reversed(daemons):
        daemon.send(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while any(daemon.runs() for daemon in daemons) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for daemon in daemons:
        daemon.send(signal.SIGKILL)


def stop(state: Path) -> None:
    """End what ``start`` started, and nothing else; fine when there is nothing."""
    with alone(state):
        cluster = read_state(state)
        if cluster is not None:
            end(list(cluster.daemons))
            (state / STATE_FILE).unlink(missing_ok=True)
        print("stopped" if cluster else "nothing to stop")


def running(state: Path) -> Cluster:
    """The cluster of the state directory; an error when there is none, or when its master has gone."""
    cluster = read_state(state)
    if cluster is None or not cluster.url or not cluster.daemons[0].runs():
        raise ClusterError(f"no cluster runs in {state}; start one: ./scripts/cluster start")
    return cluster


def status(state: Path) -> int:
    """Print the state of every process. Returns 0 when every process runs and every worker is registered, else 3."""
    cluster = running(state)
    print(f"master at {cluster.url}, web UI at {cluster.ui}")
    for daemon in cluster.daemons:
        print(f"  {daemon.name:<10} {'running' if daemon.runs() else 'ended':<8} pid {daemon.pid}")
    alive = registered(cluster.ui)
    workers = len(cluster.daemons) - 1
    used, cores = sum(worker["coresused"] for worker in alive), sum(worker["cores"] for worker in alive)
    print(f"  {len(alive)} of {workers} workers registered, {used} of {cores} cores in use")
    return 0 if len(alive) == workers else 3


def arguments() -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(prog="cluster", description="A standalone Spark cluster on this machine.")
    default = os.environ.get("WALLAROO_CLUSTER_DIR") or str(Path(__file__).resolve().parents[1] / ".cluster")
    parser.add_argument("--state", type=Path, default=Path(default), help="state directory (default: %(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    starting = verbs.add_parser("start", help="start a master and its workers; prints the master's URL")
    starting.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    starting.add_argument("--cores", type=int, default=2, metavar="N", help="task slots of each worker (default: 2)")
    starting.add_argument("--memory", default="1g", metavar="SIZE", help="memory of each worker (default: 1g)")
    verbs.add_parser("stop", help="end what start started")
    verbs.add_parser("status", help="show what runs; exit status 0 when all of it does, 3 when not")
    verbs.add_parser("url", help="print the master's URL")
    chosen = parser.parse_args()
    if chosen.verb == "start" and (chosen.workers < 1 or chosen.cores < 1):
        parser.error("--workers and --cores must be at least 1")
    if chosen.verb == "start" and not re.fullmatch(r"\d+[kmgt]", chosen.memory):
        parser.error(
            f"--memory {chosen.memory} cannot be read; expected a whole number with a unit, such as 512m or 1g"
        )
    return chosen


def main() -> int:
    """Run the verb; 1 with a sentence on stderr when it could not be done."""
    given = arguments()
    state: Path = given.state.absolute()
    try:
        match given.verb:
            case "start":
                start(state, given.workers, given.cores, given.memory)
            case "stop":
                stop(state)
            case "status":
                return status(state)
            case "url":
                print(running(state).url)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
