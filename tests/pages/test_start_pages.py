"""The blocks for a shell of the pages to begin with, typed one after the other where only the wheel is installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.pages.reading import blocks_of
from tests.pages.wheel import environment, installed
from tests.waiting import SECONDS, eventually
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port


class Terminal:
    """A reader who types a page's blocks, with what stands here for the page's ports and addresses."""

    def __init__(self, page: str, folder: Path, programs: Path, places: dict[str, str]) -> None:
        self._blocks = [block.text for block in blocks_of(ROOT / page) if block.language == "shell"]
        self._folder, self._programs, self._places = folder, programs, places
        self._for_here = re.compile("|".join(map(re.escape, places)))

    def run(self) -> str:
        """Type the next block and wait for its end; what it has printed."""
        typed = self.begin()
        out, err = typed.communicate(timeout=2 * SECONDS)
        assert typed.returncode == 0, out + err
        return out

    def begin(self) -> subprocess.Popen[str]:
        """Type the next block. Nothing is installed: the wheel is there, with all that it needs."""
        text = self._for_here.sub(lambda found: self._places[found[0]], self._blocks.pop(0))
        text = re.sub(r"^pip install .*$", "", text, flags=re.MULTILINE)
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text], cwd=self._folder, env=environment(self._programs),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def finish(self) -> None:
        """The page has no more blocks."""
        assert self._blocks == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_pages_for_data_engineers_and_operators(tmp_path: Path) -> None:
    programs = installed(tmp_path / "installed")
    folder = tmp_path / "empty"
    folder.mkdir()
    port, page = lasting_port((0, 1)), lasting_port()
    with EmbeddedRedis() as store:
        places = {"7100": str(port), "7101": str(port + 1), "4140": str(page), "redis://redis:6379": store.url}
        places["7077"] = str(lasting_port())
        engineer = Terminal("docs/start/cluster.md", folder, programs, places)
        operator = Terminal("docs/start/operator.md", folder, programs, places)
        engineer.run()
        sample = (folder / "orders.yaml").read_text(encoding="utf-8")
        own = sample.replace("7100", str(port)).replace("embedded", store.url) + f"statusPage: 127.0.0.1:{page}\n"
        (folder / "orders.yaml").write_text(own, encoding="utf-8")
        operator.run()
        receiving = engineer.begin()
        try:
            printed = receiving.stdout
            assert printed is not None
            eventually(lambda: "Ctrl-C stops it" in next(printed), seconds=SECONDS)
            assert engineer.run().splitlines()[-1] == "1000 rows"
            told = operator.run()
            assert '"healthy":true' in told
            assert "wallaroo_healthy" in told
            operator.run()
        finally:
            receiving.send_signal(signal.SIGINT)
            out, err = receiving.communicate(timeout=SECONDS)
        engineer.run()
        own = (folder / "orders.yaml").read_text(encoding="utf-8").replace(store.url, "embedded")
        (folder / "orders.yaml").write_text(own, encoding="utf-8")
        told = _on_a_cluster(engineer)
        engineer.finish()
        operator.finish()

    assert "Traceback" not in out + err
    assert "Ended in good order" in told
    assert (folder / "jobs" / "receive.py").is_file()
    assert (folder / "conf" / "prometheus" / "wallaroo-alerts.yaml").is_file()
    assert (folder / "support.tar.gz").is_file()


def _on_a_cluster(engineer: Terminal) -> str:
    """Type the block that starts a cluster and submits to it, and stop both; what the receiver has printed."""
    submitted = engineer.begin()
    try:
        printed = submitted.stdout
        assert printed is not None
        eventually(lambda: "Ctrl-C stops it" in next(printed), seconds=SECONDS)
        # As Ctrl-C does; the cluster is in the background of the shell, which keeps it from the signal.
        os.killpg(submitted.pid, signal.SIGINT)
        return printed.read()
    finally:
        os.killpg(submitted.pid, signal.SIGKILL)
        submitted.communicate(timeout=SECONDS)


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_the_cluster_of_the_readme(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("scripts", "conf", "jobs"):
        shutil.copytree(ROOT / name, checkout / name)
    # The environment is there, so nothing is set up.
    (checkout / ".venv").symlink_to(sys.prefix)
    (checkout / "scripts" / "setup").write_text("#!/bin/sh\n", encoding="utf-8")
    port, page = lasting_port((0, 1)), lasting_port()
    sample = checkout / "conf" / "receive.yaml"
    text = sample.read_text(encoding="utf-8").replace("7100", str(port)) + f"statusPage: 127.0.0.1:{page}\n"
    sample.write_text(text, encoding="utf-8")
    programs = Path(sys.prefix) / "bin"
    user = Terminal("README.md", checkout, programs, {"7100": str(port)})
    receiving = user.begin()
    try:
        printed = receiving.stdout
        assert printed is not None
        eventually(lambda: "Ctrl-C stops it" in next(printed), seconds=SECONDS)
        (tmp_path / "numbers.txt").write_text("".join(f"{number}\n" for number in range(1000)), encoding="utf-8")
        sending = [str(programs / "wallaroo-spark"), "send", str(tmp_path / "numbers.txt"), "--instance", "numbers-1"]
        subprocess.run(
            [*sending, "--workers", f"127.0.0.1:{port},127.0.0.1:{port + 1}", "--cookie", "secret"],
            env=environment(programs), check=True, timeout=SECONDS,
        )  # fmt: skip
        assert pq.read_table(checkout / "receive" / "rows").num_rows == 1000
    finally:
        # As Ctrl-C does, which reaches all programs of a terminal.
        os.killpg(receiving.pid, signal.SIGINT)
        _, err = receiving.communicate(timeout=SECONDS)
        stopped = [str(checkout / "scripts" / "cluster"), "stop"]
        subprocess.run(stopped, env=environment(programs), check=True, timeout=SECONDS)
    user.finish()
    assert "Traceback" not in err
