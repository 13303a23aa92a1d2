"""``conformance`` as a verb: what it prints, its exit status, and arguments that it refuses."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conformance.test_connectors import peer
from tests.gateway.shop import SHOP
from wallaroo_spark.cli.main import cli
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.testing import FakeApplication, FakeWorker


def invoke(*arguments: str, **variables: str) -> Any:
    return CliRunner().invoke(cli, ["conformance", *arguments], env=variables)


def command(fault: str = "") -> str:
    return shlex.join(peer("draft-be", fault))


def test_a_fault_is_printed_with_its_bytes_and_page_and_is_status_1() -> None:
    checks = ("--check", "credits", "--check", "redirect", "--quiet", "0.2")
    result = invoke("--connector", command("ignores-credits"), *checks)

    assert result.exit_code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "FAILED   credits"
    assert any(line.startswith("came     sent with no credit left (the balance is -") for line in lines)
    assert any(line.startswith("frame    MESSAGE stream=7, id=") for line in lines)
    assert any(line.startswith("bytes    00 00 00 1") and "(wrong at byte " in line for line in lines)
    assert "page     docs/protocol.md#credits" in lines
    assert lines[-1] == "0 passed, 2 failed, 0 left out"


def test_json_has_one_line_with_all_results() -> None:
    result = invoke("--connector", command(), "--check", "redirect", "--check", "refused-stream", "--json")

    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert (found["passed"], found["failed"], found["left_out"]) == (1, 0, 1)
    assert found["checks"][0]["check"] == "redirect"
    assert found["checks"][1] | {"does": ""} == {
        "check": "refused-stream",
        "does": "",
        "outcome": "left out",
        "page": "docs/protocol.md#stream-states",
        "came": "the connector speaks draft-be",
    }


def test_a_worker_and_a_gateway_are_checked_with_the_defaults_of_the_environment() -> None:
    with FakeWorker(cookie="secret") as worker, worker.committing():
        given = ("--worker", worker.address, "--check", "messages", "--revision", "v3")
        # The address of an application's gateway is not the one that is to be checked.
        right = invoke(*given, WALLAROO_COOKIE="secret", WALLAROO_GATEWAY="127.0.0.1:1")
        wrong = invoke(*given, "--cookie", "guess")
    with FakeApplication(SHOP) as application:
        gateway = invoke("--gateway", application.address, "--stream", "shop/orders", "--check", "publish")

    assert right.stdout.splitlines() == ["passed   messages (v3)", "1 passed, 0 failed, 0 left out"]
    assert wrong.exit_code == 1
    assert "the cookie is not the one that is expected here" in wrong.stdout
    assert gateway.stdout.splitlines() == ["passed   publish", "1 passed, 0 failed, 0 left out"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give one of --connector CMD, --worker HOST:PORT and --gateway HOST:PORT"),
        (("--worker", "a:1", "--gateway", "a:1"), "give one of"),
        (("--connector", "no-such-program-anywhere x"), "there is no program 'no-such-program-anywhere'"),
        (("--connector", " "), "there is no program ''"),
        (("--connector", __file__), "that this user may run; give its path, and make the file executable"),
        (("--connector", "sh 'x"), "--connector sh 'x: No closing quotation"),
        (("--connector", sys.executable, "--check", "credit"), "did you mean credits?"),
        (("--worker", "nowhere"), "has no port"),
        (("--worker", "a:1", "--timeout", "nan"), "nan is not a number up to 1,000,000,000"),
        (("--worker", "a:1", "--timeout", "inf"), "inf is not a number up to 1,000,000,000"),
        (("--connector", sys.executable, "--quiet", "1e12"), "1e12 is not a number up to 1,000,000,000"),
        (("--gateway", "a:1"), "--gateway needs --stream NAMESPACE/NAME"),
    ],
    ids=[
        "nothing",
        "two",
        "no-program",
        "empty",
        "not-executable",
        "quotes",
        "unknown-check",
        "no-port",
        "not-a-number",
        "without-end",
        "too-long",
        "no-stream",
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    result = invoke(*arguments)

    assert result.exit_code in (1, 2)
    assert "defect" not in result.stderr
    assert problem in " ".join((result.stderr + str(result.exception or "")).split())


@pytest.mark.parametrize(
    ("peer_of", "said"),
    [
        ("--worker", "Error: cannot connect to {}: refused; check that a worker listens there [cannot-connect]"),
        ("--gateway", "Error: cannot connect to the gateway {}: Connection refused; check the address, that the "),
    ],
    ids=["worker", "gateway"],
)
def test_where_nobody_listens_is_one_sentence_and_no_check(peer_of: str, said: str) -> None:
    address = f"127.0.0.1:{lasting_port()}"
    result = invoke(peer_of, address, "--stream", "shop/orders")

    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(said.format(address))
