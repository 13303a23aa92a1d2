"""Run conf/yarn.conf on Hadoop's cluster for tests, send lines, kill an executor and the application master, and judge.

It needs Java and the package hdfs-native. The first run fetches Hadoop's cluster and packs an environment; both stay in
``build``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import hdfs_native
import psutil
import pyspark

from proving.chaos.judge import Verdict, judge, read_sink, sink_log
from proving.processes import exit_on_sigterm, processes_with
from proving.reporting import Steps
from proving.servers.hadoop import HadoopCluster
from proving.servers.packages.maven import jars_of_spark
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "yarn"
ARCHIVE = "environment.tar.gz"
LINES = 20_000
PROGRAM = [sys.executable, "-m", "wallaroo_spark.cli.main"]
MASTER, EXECUTOR = "org.apache.spark.deploy.yarn.ApplicationMaster", "YarnCoarseGrainedExecutorBackend"
YAML = """\
receiver: orders
registry: {registry}
workers: 2
port: {port}
cookie: file:cookie
checkpoint: /orders/checkpoint
sink: {{format: parquet, path: /orders/rows}}
trigger: {{processingTime: 1 second}}
"""
SMALL = {
    # For one machine with two cores. The rest is conf/yarn.conf as it is.
    "spark.driver.memory": "1g",
    "spark.executor.instances": "2",
    "spark.executor.memory": "1g",
    "spark.yarn.submit.waitAppCompletion": "false",
    "spark.yarn.jars": f"local:{jars_of_spark()}/*",
}


def main() -> None:
    """Pack the environment, start the cluster, and run."""
    argparse.ArgumentParser(prog="python -m proving.yarn", description=__doc__).parse_args()
    exit_on_sigterm()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with HadoopCluster() as hadoop, EmbeddedRedis() as redis:
        Run(hadoop, redis.url).run()


class Run(Steps):
    """One application of YARN, from its archive to its end. Each step raises what is wrong."""

    def __init__(self, hadoop: HadoopCluster, registry: str) -> None:
        super().__init__()
        self._hadoop, self._registry = hadoop, registry
        self._port = lasting_port(range(2))
        self._application = ""
        self._files = {name: FOLDER / f"{name}.txt" for name in ("shop-1", "shop-2")}
        self._senders: dict[str, subprocess.Popen[str]] = {}
        self._commands: dict[str, list[str]] = {}
        self._hdfs = hdfs_native.Client(f"hdfs://127.0.0.1:{hadoop.port}")
        self._sent = 0

    def run(self) -> None:
        """All steps in turn."""
        try:
            self.pack()
            self.submit()
            self.connect()
            self.kill_executor()
            self.kill_master()
            acknowledged = self.disconnect()
            self.kill_application()
            self.judge(acknowledged)
        finally:
            for sender in self._senders.values():
                sender.kill()
            # Where a step has failed; containers outlive a node manager.
            for process in (*self.containers(MASTER).values(), *self.containers(EXECUTOR).values()):
                process.kill()

    def pack(self) -> None:
        """The environment, by scripts/package."""
        python = os.path.realpath(sys.executable)
        subprocess.run([ROOT / "scripts" / "package", "--python", python, FOLDER / ARCHIVE], check=True)
        self.say(f"the archive has {(FOLDER / ARCHIVE).stat().st_size / 1e6:.0f} MB")

    def submit(self) -> None:
        """Submit jobs/receive.py in cluster mode, and wait until its slots are served."""
        (FOLDER / "cookie").write_text("a-cookie\n")
        (FOLDER / "receive.yaml").write_text(YAML.format(registry=self._registry, port=self._port))
        options = [text for name, value in SMALL.items() for text in ("--conf", f"{name}={value}")]
        submit, job = Path(pyspark.__file__).parent / "bin" / "spark-submit", ROOT / "jobs" / "receive.py"
        command = [
            str(submit),
            "--properties-file",
            str(ROOT / "conf" / "yarn.conf"),
            *options,
            str(job),
            "receive.yaml",
        ]
        variables = {"HADOOP_CONF_DIR": str(self._hadoop.configuration)}
        # The containers shall find neither this program's Python nor the settings of Spark that tests have.
        of_this = ("PYTHON", "PYSPARK", "SPARK_")
        without = {name: text for name, text in os.environ.items() if not name.startswith(of_this)}
        done = subprocess.run(
            command, cwd=FOLDER, env=without | variables, capture_output=True, text=True, check=False, timeout=240
        )
        found = re.search(r"Submitted application (application_\w+)", done.stderr)
        if done.returncode or found is None:
            raise RuntimeError(f"spark-submit ends with {done.returncode}: {done.stderr[-3000:]}")
        self._application = found[1]
        self.say(f"{self._application} is submitted")
        self.await_slots("both slots are served")

    def await_slots(self, what: str, before: set[int] | None = None) -> None:
        """Wait until each slot has a worker that serves, and that is none of ``before``."""

        def served() -> bool:
            state = self.state()
            if state["finalStatus"] in ("FAILED", "KILLED", "SUCCEEDED"):
                raise RuntimeError(f"the application has ended: {state['diagnostics']}")
            pids = self.workers()
            return len(pids) == 2 and not set(pids.values()) & (before or set())

        self.wait(what, served)

    def state(self) -> Any:
        """The application as the resource manager has it."""
        return self._hadoop.resource_manager(f"apps/{self._application}")["app"]

    def workers(self) -> dict[int, int]:
        """The process of each slot's worker that serves."""
        command = [*PROGRAM, "status", "--json", "--registry", self._registry, "--receiver", "orders"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode not in (0, 1) or not done.stdout:
            return {}
        slots = json.loads(done.stdout)["slots"]
        return {slot["slot"]: slot["pid"] for slot in slots if slot["state"] == "serving"}

    def containers(self, program: str) -> dict[str, psutil.Process]:
        """The Java processes of the application's containers that run this program."""
        found = {}
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                if process.name() == "java" and program in line and self._application and self._application in line:
                    found[re.findall(r"container_\w+", line)[0]] = process
            except psutil.Error:
                continue
        return found

    def connect(self) -> None:
        """Two connectors follow a file each. One finds the workers in the registry, the other has their addresses."""
        self.write_lines()
        by_address = f"127.0.0.1:{self._port},127.0.0.1:{self._port + 1}"
        ways = {
            "shop-1": ["--registry", self._registry, "--receiver", "orders"],
            "shop-2": ["--workers", by_address],
        }
        for name, way in ways.items():
            command = [*PROGRAM, "send", str(self._files[name]), "--follow", "--instance", name, *way]
            command += ["--cookie", f"file:{FOLDER / 'cookie'}", "--json"]
            self._commands[name] = command
            with (FOLDER / f"{name}.log").open("w") as log:
                self._senders[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.await_rows("the first lines are committed")

    def write_lines(self) -> None:
        """Give the connectors more lines."""
        for name, path in self._files.items():
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{name} line {self._sent + number}\n" for number in range(LINES))
        self._sent += LINES

    def await_rows(self, what: str) -> None:
        """Wait until the table has as many rows as there are lines."""

        def rows() -> bool:
            self.fetch()
            return bool(read_sink(FOLDER / "orders").rows.num_rows >= self._sent * len(self._files))

        self.wait(what, rows)

    def fetch(self) -> None:
        """Copy what is committed from HDFS: the sink's log, the files that it names, and the commits of the query."""
        self._copy("checkpoint/commits")
        self._copy("rows/_spark_metadata")
        for _, file in sink_log(FOLDER / "orders" / "rows"):
            self._copy_file(file.relative_to(FOLDER / "orders"))

    def _copy(self, folder: str) -> None:
        for found in self._hdfs.glob_status(f"/orders/{folder}/[0-9]*"):
            self._copy_file(Path(folder) / Path(found.path).name)

    def _copy_file(self, name: Path) -> None:
        """Copy a file, which never changes, with the time of its change."""
        here, there = FOLDER / "orders" / name, f"/orders/{name}"
        if not here.exists():
            found = self._hdfs.get_file_info(there)
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_bytes(self._hdfs.read(there).read(found.length))
            changed = found.modification_time / 1000
            os.utime(here, (changed, changed))

    def kill_executor(self) -> None:
        """Kill the executor of slot 0 while lines are on their way."""
        before = self.workers()
        around = {process.pid for process in psutil.Process(before[0]).parents()}
        executors = self.containers(EXECUTOR)
        ((container, victim),) = [(name, found) for name, found in executors.items() if found.pid in around]
        self.write_lines()
        victim.kill()
        self.say(f"{container}, the executor of slot 0, is killed")
        self.wait("another worker serves slot 0", lambda: self.workers().get(0, before[0]) != before[0])
        self.wait("no process of the executor is left", lambda: not processes_with("CONTAINER_ID", container))
        self.wait("another executor is there", lambda: len(self.containers(EXECUTOR)) == len(executors))
        self.await_rows("its lines are committed")

    def kill_master(self) -> None:
        """Kill the application master, in whose process Spark's driver is."""
        before = set(self.workers().values())
        ((container, victim),) = self.containers(MASTER).items()
        old = [container, *self.containers(EXECUTOR)]
        self.write_lines()
        victim.kill()
        self.say(f"{container}, the application master, is killed")
        self.wait(
            "no process of the first attempt is left",
            lambda: not any(processes_with("CONTAINER_ID", name) for name in old),
        )
        self.await_slots("the second attempt serves both slots", before)
        self.await_rows("its lines are committed")

    def disconnect(self) -> dict[str, int]:
        """End the connectors, and send both files again; the reference that the workers say is acknowledged."""
        found = {}
        for name, sender in self._senders.items():
            sender.terminate()
            sender.communicate(timeout=60)
            command = [word for word in self._commands[name] if word != "--follow"]
            again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
            (shown,) = json.loads(again.stdout.splitlines()[-1])["files"]
            assert shown["messages"] == 0, f"{name} has sent {shown['messages']} lines again"
            found[name] = int(shown["acknowledged"])
        self.say("both files are sent again, and the workers want none of their lines")
        return found

    def kill_application(self) -> None:
        """End the application as its owner does."""
        self._hadoop.resource_manager(f"apps/{self._application}/state", {"state": "KILLED"})
        self.wait("the application is ended", lambda: self.state()["state"] == "KILLED")
        both = (MASTER, EXECUTOR)
        self.wait("none of its processes is left", lambda: not any(self.containers(one) for one in both))
        attempts = self._hadoop.resource_manager(f"apps/{self._application}/appattempts")["appAttempts"]["appAttempt"]
        assert len(attempts) == 2, f"there were {len(attempts)} attempts"

    def judge(self, acknowledged: dict[str, int]) -> None:
        """Compare the table with the lines."""
        self.fetch()
        names = {name: str(path) for name, path in self._files.items()}
        acks = {names[name]: [(time.time(), reference)] for name, reference in acknowledged.items()}
        verdict: Verdict = judge(list(self._files.values()), read_sink(FOLDER / "orders"), acks)
        if not verdict.clean:
            fail(verdict)
        self.say(verdict.title)


def fail(verdict: Verdict) -> NoReturn:
    """End with the counts."""
    sys.exit("\n".join(verdict.lines))


if __name__ == "__main__":
    main()
