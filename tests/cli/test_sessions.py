"""The sessions that the command line makes: loopback, no UI, and a quiet standard error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.class_archive import java_options
from tests.conftest import ROOT
from tests.waiting import SECONDS, eventually
from wallaroo_spark.cli.sessions import LOG4J, defaults, log_to, quick_processes, without_noisy_lines
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.runtime.spark_checks import VFORK

VERB = str(Path(sys.executable).with_name("wallaroo-spark"))
FOREIGN = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP")
LISTENING = "0A"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOREIGN:
        monkeypatch.setenv(name, "restored at the end")
        monkeypatch.delenv(name)


def listening(process: psutil.Process) -> set[tuple[int, str]]:
    """Ports and addresses at which a process and its descendants listen, as the kernel's tables have them."""
    found = set()
    for one in (process, *process.children(recursive=True)):
        try:
            held = {os.readlink(file) for file in Path(f"/proc/{one.pid}/fd").iterdir() if file.is_symlink()}
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/{one.pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    address, _, port = fields[1].partition(":")
                    if fields[3] == LISTENING and f"socket:[{fields[9]}]" in held:
                        found.add((int(port, 16), address))
        except FileNotFoundError:
            continue
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an address of IPv6, and ::1, as Linux on a little-endian machine writes them."""


@pytest.mark.spark
def test_run_listens_on_loopback_alone_and_prints_its_own_lines_alone(tmp_path: Path) -> None:
    # The variables of the tests' Spark would hide where this one listens. Java's options only have it start faster.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment["SPARK_SUBMIT_OPTS"] = java_options()
    schema = str(ROOT / "examples" / "shop" / "shop.yaml")
    command = [VERB, "run", "--app", "shop", "--schema", schema, "--status-page", "127.0.0.1:0"]
    with (
        (tmp_path / "stderr").open("wb") as errors,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if "serving" in line:
                break
        # The query's first batch has begun once an event is published, and so have the processes that run it.
        published = subprocess.run(
            [VERB, "publish", "shop/orders", "--type", "t", "--data", "1", "--gateway", lines[-1].rpartition(" ")[2]],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        found = listening(psutil.Process(process.pid))
        process.send_signal(signal.SIGTERM)
        lines += [line.rstrip("\n") for line in process.stdout]

    assert (tmp_path / "stderr").read_text(encoding="utf-8") == ""
    assert published.stdout == "Published 1 event to shop/orders.\n", published.stderr
    assert {port: address for port, address in found if address not in LOOPBACK} == {}
    assert len(found) > 5
    assert (tmp_path / "stderr").read_text(encoding="utf-8") == ""
    page, gateway = lines.pop(3), lines.pop(3)
    assert page.startswith("Page: http://127.0.0.1:")
    assert gateway.startswith("Gateway g0: serving at 127.0.0.1:")
    assert lines == [
        "Schema: version 1 is written.",
        "Starting Spark …",
        "Starting the gateways and the query …",
        "Stopping (SIGTERM) …",
        "Ended in good order.",
    ]


NOT_OF_THIS_MACHINE = "192.0.2.1"


@pytest.mark.spark
def test_a_worker_that_cannot_start_is_one_sentence_without_a_stack_of_java(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment["SPARK_SUBMIT_OPTS"] = java_options()
    (tmp_path / "orders.yaml").write_text(
        f"receiver: orders\nregistry: embedded\nworkers: 1\nport: 0\nhost: {NOT_OF_THIS_MACHINE}\ncookie: secret\n"
        "checkpoint: ./checkpoint\n"
        "statusPage: 127.0.0.1:0\nsink:\n  format: noop\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [VERB, "receive", "orders.yaml"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip

    assert ended.returncode == 1
    (error,) = ended.stderr.splitlines()
    assert error.startswith("Error: receiver 'orders': worker 0 cannot start: on ")
    assert NOT_OF_THIS_MACHINE in error


def test_a_session_on_this_machine_is_on_loopback_without_a_ui() -> None:
    for settings in ({}, {"spark.master": "local[2]"}):
        found = defaults(settings, 3) | settings

        assert found["spark.master"].startswith("local[")
        assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
        assert (found["spark.ui.enabled"], found["spark.ui.showConsoleProgress"]) == ("false", "false")
        assert LOG4J.as_uri() in found["spark.driver.extraJavaOptions"]
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


SEARCHING = """
from wallaroo_spark.cli.sessions import started
spark = started("a long error", {}, 1)
pattern = spark._jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution.PROXY_ERROR()
text = "py4j.protocol.Py4JJavaError: An error occurred while calling" + "x" * 12_000
print(pattern.findFirstIn(text + "java.io.InterruptedIOException: ended").isDefined())
"""


@pytest.mark.spark
def test_spark_searches_a_long_error_of_an_interrupted_batch(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment["SPARK_SUBMIT_OPTS"] = java_options()
    ended = subprocess.run(
        [sys.executable, "-c", SEARCHING],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip

    assert ended.stdout == "True\n", ended.stderr


@pytest.mark.spark
def test_java_does_not_outlive_a_program_that_is_interrupted_while_it_starts(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    (tmp_path / "orders.yaml").write_text(
        "receiver: orders\nregistry: embedded\nworkers: 1\nport: 0\ncookie: secret\ncheckpoint: ./checkpoint\n"
        "sink:\n  format: noop\n",
        encoding="utf-8",
    )
    command = [VERB, "receive", "orders.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
        own = psutil.Process(process.pid)

        def starting() -> list[psutil.Process]:
            return [one for one in own.children() if any("SparkSubmit" in word for word in one.cmdline())]

        started = eventually(starting, "Java starts")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    _, left = psutil.wait_procs(started, timeout=10)
    for one in left:
        one.kill()

    assert len(started) == 1
    assert left == []


@pytest.mark.parametrize(("home", "said"), [("/nowhere", "JAVA_HOME is '/nowhere'"), ("", "JAVA_HOME is not set")])
def test_a_machine_without_java_is_told_so_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigurationError, match=f"Spark needs Java 17 or newer, and there is none: {said}"):
        defaults({}, 3)


def test_a_session_on_a_cluster_has_no_ui_and_addresses_of_its_own() -> None:
    found = defaults({"spark.master": "spark://here:7077"}, 3)

    assert found["spark.ui.enabled"] == "false"
    assert not {"spark.master", "spark.driver.host", "spark.driver.bindAddress"} & found.keys()
    assert "SPARK_LOCAL_IP" not in os.environ


def test_settings_of_spark_submit_and_of_a_spark_of_ones_own_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert "spark.driver.extraJavaOptions" not in defaults({}, 3)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert defaults({}, 3) == {"spark.ui.showConsoleProgress": "false"}


def test_spark_finds_the_file_for_its_log() -> None:
    assert "rootLogger.level = error" in LOG4J.read_text(encoding="utf-8")


def test_lines_of_others_pass() -> None:
    shown = b"12:00:00 ERROR Java: \xff\n\nStreaming is fun\n  at line 1\nthe end"
    noise = (
        b"WARNING: Using incubator modules: jdk.incubator.vector\n"
        b"Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n"
        b"Starting Streaming TransformWithStateInPandas Python worker.\n\n"
        b"Streaming TransformWithStateInPandas Python worker Completed execution of UDF: <x>.\n\n"
    )

    assert b"".join(without_noisy_lines((noise + shown).splitlines(keepends=True))) == shown


LAST_LINES = """
import subprocess, sys
from wallaroo_spark.cli.sessions import without_noise

OTHER = r"import os; os.write(2, b'WARNING: A restricted method\\n' + b'x' * 2_000 + b'\\nlast')"
OTHER += "; print(1, flush=True); input()"
with without_noise():
    other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
other.stdout.readline()
sys.stderr.write("own\\n")
"""


def test_the_last_lines_of_a_process_that_still_runs_are_shown() -> None:
    ended = subprocess.run([sys.executable, "-c", LAST_LINES], capture_output=True, timeout=SECONDS, check=False)

    assert ended.returncode == 0
    assert sorted(ended.stderr.splitlines()) == [b"last", b"own", b"x" * 2_000]


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', VFORK),
        ('JAVA_VERSION="25"\n', VFORK),
        ('JAVA_VERSION="26.0.1"\n', ""),
        ("nothing", ""),
        (None, ""),
    ],
)
def test_a_java_that_has_it_starts_processes_without_its_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, expected: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    if release is not None:
        (tmp_path / "release").write_text(release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert quick_processes() == expected
    assert log_to(LOG4J)["spark.driver.extraJavaOptions"].endswith(expected or '.properties"')
