"""send, as a process, against a real worker whose messages are committed, or are not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COOKIE, PROGRAM, Desk, Run
from tests.waiting import SECONDS, eventually
from wallaroo_spark.cli.send.view import InputProgress, SendView, summary, waits
from wallaroo_spark.texts import count, size


def last_line(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    file = tmp_path / "orders.jsonl"
    file.write_bytes(b"".join(b'{"order": %d}\n' % number for number in range(500)))
    return file


@pytest.mark.parametrize("revision", ["draft-be", "draft-le", "v3"])
def test_every_line_is_sent_and_acknowledged(desk: Desk, run: Run, orders: Path, revision: str) -> None:
    ended = run(
        "send", str(orders), "--workers", desk.address, "--cookie", COOKIE, "--revision", revision, "--json",
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    size_ = orders.stat().st_size
    assert last_line(ended.stdout) == {
        "messages": 500,
        "bytes": size_ - 500,
        "complete": True,
        "files": [{"file": str(orders), "messages": 500, "bytes": size_ - 500, "acknowledged": size_}],
    }
    assert [list(streams.values()) for streams in desk.references.values()] == [[size_]]


def test_a_second_run_goes_on_where_the_first_one_was(desk: Desk, run: Run, orders: Path) -> None:
    arguments = ["send", str(orders), "--registry", desk.url, "--receiver", desk.receiver, "--cookie", COOKIE]
    assert run(*arguments).returncode == 0
    unchanged = run(*arguments)
    with orders.open("ab") as file:
        file.write(b"one more\n")
    longer = run(*arguments, "--json")

    assert (unchanged.returncode, longer.returncode) == (0, 0)
    assert "nothing new; 7.2 KiB are acknowledged from before" in unchanged.stdout
    assert last_line(longer.stdout)["messages"] == 1


def test_the_secrets_come_from_the_environment_or_a_file(desk: Desk, run: Run, orders: Path, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text(desk.url + "\n", encoding="utf-8")

    ended = run(
        "send", str(orders), "--registry", f"file:{secret}", "--receiver", desk.receiver, "--cookie", "env:THE_COOKIE",
        THE_COOKIE=COOKIE,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert "500 messages" in ended.stdout


def test_standard_input_is_sent_once(desk: Desk, run: Run) -> None:
    ended = run("send", "-", "--workers", desk.address, "--cookie", COOKIE, "--json", stdin="a\nb\nc")

    assert ended.returncode == 0, ended.stderr
    assert last_line(ended.stdout)["files"] == [{"file": "-", "messages": 3, "bytes": 3, "acknowledged": None}]


def test_framed_records_are_sent_without_their_lengths(desk: Desk, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "records"
    file.write_bytes(b"\0\0\0\3a\nb" + b"\0\0\0\0")

    ended = run("send", str(file), "--framed", "--workers", desk.address, "--cookie", COOKIE, "--json")

    assert ended.returncode == 0, ended.stderr
    assert last_line(ended.stdout)["files"][0] == {"file": str(file), "messages": 2, "bytes": 3, "acknowledged": 11}


def test_one_bad_file_leaves_the_others_to_their_end(desk: Desk, run: Run, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(b"\0\0\0\1a")
    bad.write_bytes(b"\0\0\0\5a")

    ended = run("send", str(good), str(bad), "--framed", "--workers", desk.address, "--cookie", COOKIE, "--json")

    assert ended.returncode == 1
    assert f"Error: file {bad} ends within the record at offset 0" in ended.stderr
    assert last_line(ended.stdout)["complete"] is False
    assert [file["acknowledged"] for file in last_line(ended.stdout)["files"]] == [5, None]


def test_a_wrong_cookie_is_refused_with_the_way_out(desk: Desk, run: Run, orders: Path) -> None:
    ended = run("send", str(orders), "--workers", desk.address, "--cookie", "not-the-cookie")

    assert ended.returncode == 1
    assert "check that the connector's cookie is the receiver's" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "not-the-cookie" not in ended.stdout + ended.stderr
    assert COOKIE not in ended.stdout + ended.stderr


def test_a_worker_that_is_not_there_is_given_up(run: Run, orders: Path) -> None:
    ended = run("send", str(orders), "--workers", "127.0.0.1:1", "--give-up-after", "0.2")

    assert ended.returncode == 1
    assert "Error: no session with a worker for" in ended.stderr
    assert "0 B of 7.2 KiB acknowledged" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --workers host:port, or --registry URL and --receiver NAME"),
        (["--workers", "a:1", "--registry", "redis://b"], "give either --workers host:port"),
        (["--registry", "redis://b"], "--registry needs --receiver NAME"),
        (["--workers", "a:1", "orders.jsonl"], "orders.jsonl is given twice"),
        (["--workers", "a:1", "-", "--framed"], "standard input is read as lines, to its end"),
        (["--workers", "a:1", "--revision", "v9"], "'v9' is not one of"),
        (["--workers", "a:1", "gone.txt"], "there is no file gone.txt; check the path, or wait for it with --follow"),
        (["--workers", "a:1", "*.gone"], "no file matches *.gone; with --follow it would be waited for"),
        (["--workers", "a:1", "-", "--stream", "s"], "--stream names the stream of one file or of standard input"),
    ],
)
def test_invalid_arguments_are_refused(run: Run, orders: Path, arguments: list[str], message: str) -> None:
    ended = run("send", "orders.jsonl", *arguments)

    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_followed_file_is_sent_until_a_signal_comes(
    desk: Desk, orders: Path, number: signal.Signals, status: int
) -> None:
    command = [*PROGRAM, "send", str(orders), "--follow", "--workers", desk.address, "--cookie", COOKIE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: any(orders.stat().st_size in streams.values() for streams in desk.references.values()))
        with orders.open("ab") as file:
            file.write(b"one more\n")
        eventually(lambda: any(orders.stat().st_size in streams.values() for streams in desk.references.values()))
        eventually(lambda: desk.client.status()["sessions"] == 1)
        os.kill(process.pid, number)
        shown, errors = process.communicate(timeout=SECONDS)

    assert process.returncode == status, errors
    assert "Traceback" not in errors
    assert f"{orders}: 501 messages" in shown


def test_messages_that_are_not_committed_in_time_are_an_error(desk: Desk, run: Run, orders: Path) -> None:
    desk.open.clear()

    ended = run("send", str(orders), "--workers", desk.address, "--cookie", COOKIE, "--drain-timeout", "0.1", "--json")

    assert ended.returncode == 1
    assert f"Error: stream '{orders}' was sent to its end and nothing of it was acknowledged for 0.1 s" in ended.stderr
    assert last_line(ended.stdout)["complete"] is False


def test_uncommitted_messages_are_waited_for(desk: Desk, orders: Path) -> None:
    desk.open.clear()
    command = [*PROGRAM, "send", str(orders), "--workers", desk.address, "--cookie", COOKIE, "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        said = next(line for line in lines if "waits for Spark to commit" in line)
        assert process.poll() is None
        desk.open.set()
        rest = "".join(lines)
        assert process.wait(SECONDS) == 0

    assert "500 messages sent, 0 B of" in said
    assert "500 messages (6.7 KiB) sent and acknowledged" in rest


def test_the_reason_of_a_waiting_send_is_shown_in_words() -> None:
    fresh, busy = InputProgress("a", 10, True), InputProgress("b", 10, True, messages=3, sent=9)
    done = InputProgress("c", 10, True, messages=3, outcome="done")

    assert waits("credit", [busy]) == "credit from the worker"
    assert waits("something new", [busy]) == "something new"
    assert waits(None, [fresh]) == "a session with a worker"
    assert waits(None, [fresh, busy]) == "Spark to commit"
    assert waits(None, [done]) == ""
    followed = InputProgress("d", 10, True, messages=3, sent=9, acknowledged=9)
    assert waits(None, [followed]) == ""


def test_a_file_that_grows_is_not_more_acknowledged_than_it_has() -> None:
    view = SendView([], 1.0, as_json=False)
    view.inputs = {"a": InputProgress("a", 18, True, messages=2, bytes=27, sent=29, acknowledged=29)}

    assert view._total() == "2 messages sent, 29 B of 29 B acknowledged"


def test_a_summary_tells_a_part_from_the_whole() -> None:
    part = InputProgress("a", 2048, True, messages=3, bytes=30, acknowledged=1024, outcome="failed")

    assert (
        summary(part, 1.0)
        == "a: 3 messages (30 B) sent, 1.0 KiB of 2.0 KiB acknowledged; the next run continues behind byte 1,024"
    )


def test_numbers_are_written_as_people_read_them() -> None:
    assert (count(1, "row"), count(1200, "row"), count(2, "batch", "batches")) == ("1 row", "1,200 rows", "2 batches")
    assert (size(0), size(1023), size(1536), size(256 << 20), size(3 << 40)) == (
        "0 B", "1023 B", "1.5 KiB", "256 MiB", "3.0 TiB",
    )  # fmt: skip
