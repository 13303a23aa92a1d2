"""A time limit around every test that talks to a worker, and the three revisions."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.connector import Backoff
from wallaroo_spark.connector import record as message_columns_module

REVISIONS = ("draft-le", "draft-be", "v3")
QUICK = Backoff(initial=0.01, maximum=0.05, give_up_after=SECONDS)
"""Comes back at once; the limit is never reached by a test that passes."""

BRIEF = Backoff(initial=0.01, maximum=0.05, attempts=3)
"""The same for tests that wait for the limit."""


@pytest.fixture(autouse=True)
def numbers_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without an id are numbered from 1, which reads better than the time."""
    monkeypatch.setattr("wallaroo_spark.connector.connector.time_ns", lambda: 1)


@pytest.fixture(params=REVISIONS)
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port at which nobody listens, kept from everybody else."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of three, however long reading them takes."""
    monkeypatch.setattr(message_columns_module, "GROUP_MESSAGES", 3)
    monkeypatch.setattr(message_columns_module, "GROUP_SECONDS", 60.0)
