"""send with files that are rotated, appear, and have lines that are too long; and its end by signals and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.cli.conftest import COOKIE, PROGRAM, Desk, Run
from tests.waiting import SECONDS, eventually
from wallaroo_spark.testing import FakeWorker


def sent_lines(worker: FakeWorker) -> list[tuple[str, bytes]]:
    table = worker.committed
    return list(zip(table["stream"].to_pylist(), table["value"].to_pylist(), strict=True))


def environment(tmp_path: Path) -> dict[str, str]:
    """Positions in a folder of the test, which is not beside the files."""
    return os.environ | {"XDG_STATE_HOME": str(tmp_path.parent / f"{tmp_path.name}-state")}


def test_a_log_is_one_stream_across_rotations_kills_and_restarts(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    lines = [b"line %d" % number for number in range(2000)]

    def write(part: slice, end: bytes = b"\n") -> None:
        with log.open("ab") as file:
            file.write(b"\n".join(lines[part]) + end)

    with FakeWorker(cookie=COOKIE) as worker:
        command = [
            *PROGRAM, "send", str(log), "--follow", "--stream", "app", "--workers", worker.address, "--cookie", COOKIE,
            "--instance", "shop-1",
        ]  # fmt: skip

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

        def kill(process: subprocess.Popen[bytes]) -> None:
            process.kill()
            process.wait(SECONDS)

        with worker.committing():
            write(slice(500))
            process = start()
            eventually(lambda: len(worker.committed) >= 100, seconds=SECONDS)
            kill(process)
            write(slice(500, 800), b"")
            log.rename(tmp_path / "app.log.1")
            write(slice(800, 1200))
            process = start()
            eventually(lambda: len(worker.committed) >= 900, seconds=SECONDS)
            kill(process)
            write(slice(1200, 1500))
            (tmp_path / "app.log.1").rename(tmp_path / "app.log.2")
            log.rename(tmp_path / "app.log.1")
            process = start()
            write(slice(1500, 2000))
            eventually(lambda: len(worker.committed) >= 2000, seconds=SECONDS)
            process.terminate()
            process.wait(SECONDS)
        assert sent_lines(worker) == [("app", line) for line in lines]


def test_files_that_appear_and_match_a_pattern_are_sent_and_rotated_ones_are_not_sent_again(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"a1\n")
    with FakeWorker(cookie=COOKIE) as worker:
        command = [*PROGRAM, "send", "*", "--follow", "--workers", worker.address, "--cookie", COOKIE]
        with (
            subprocess.Popen(
                command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            ) as process,
            worker.committing(),
        ):  # fmt: skip
            eventually(lambda: len(worker.committed) == 1, seconds=SECONDS)
            (tmp_path / "b.log").write_bytes(b"b1\nb2\n")
            eventually(lambda: len(worker.committed) == 3, seconds=SECONDS)
            (tmp_path / "a.log").rename(tmp_path / "a.log.1")
            (tmp_path / "a.log").write_bytes(b"a2\n")
            eventually(lambda: len(worker.committed) == 4, seconds=SECONDS)
            os.kill(process.pid, signal.SIGINT)
            shown, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 130, errors
        assert sorted(sent_lines(worker)) == [("a.log", b"a1"), ("a.log", b"a2"), ("b.log", b"b1"), ("b.log", b"b2")]
        assert "b.log: 2 messages (4 B) sent" in shown
        assert "the next run continues behind byte" in shown


def test_framed_files_are_followed_across_rotations_and_found_by_a_pattern(tmp_path: Path) -> None:
    def write(name: str, *payloads: bytes) -> None:
        with (tmp_path / name).open("ab") as file:
            file.write(b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads))

    write("a.bin", b"one", b"t\no")
    with FakeWorker(cookie=COOKIE) as worker:
        command = [*PROGRAM, "send", "*.bin", "--follow", "--framed", "--workers", worker.address, "--cookie", COOKIE]
        with (
            worker.committing(),
            subprocess.Popen(
                command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process,
        ):
            eventually(lambda: len(worker.committed) == 2, seconds=SECONDS)
            (tmp_path / "a.bin").rename(tmp_path / "a.bin.1")
            write("a.bin", b"three")
            write("b.bin", b"new")
            eventually(lambda: len(worker.committed) == 4, seconds=SECONDS)
            process.terminate()
            process.wait(SECONDS)
        assert sorted(sent_lines(worker)) == [
            ("a.bin", b"one"), ("a.bin", b"t\no"), ("a.bin", b"three"), ("b.bin", b"new"),
        ]  # fmt: skip


def test_a_second_signal_ends_at_once(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "orders.txt"
    file.write_bytes(b"one\n")
    desk.open.clear()
    command = [*PROGRAM, "send", str(file), "--workers", desk.address, "--cookie", COOKIE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: desk.client.status()["sessions"] == 1, seconds=SECONDS)
        # The process does not run while both signals come, so it cannot have ended in between.
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
        _, errors = process.communicate(timeout=SECONDS)

    assert process.returncode in (130, 143)
    assert "Ended at once." in errors


def test_a_line_that_is_too_long_is_named_and_may_be_left_out(desk: Desk, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_bytes(b"one\n" + b"x" * (5 << 20) + b"\nthree\n")
    arguments = ["send", str(file), "--workers", desk.address, "--cookie", COOKIE, "--json"]

    refused = run(*arguments)
    left_out = run(*arguments, "--long-lines", "skip")

    assert refused.returncode == 1
    assert f"Error: file {file}, line 2: it has 5242880 bytes, and the limit is 4194271; shorten it" in refused.stderr
    assert json.loads(refused.stdout.splitlines()[-1])["files"][0]["messages"] == 1
    assert left_out.returncode == 0, left_out.stderr
    assert json.loads(left_out.stdout.splitlines()[-1])["complete"] is True
