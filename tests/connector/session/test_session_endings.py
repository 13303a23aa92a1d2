"""Where a connector tries again after each end of a session, and which ends are final; without sockets."""

from __future__ import annotations

import pytest

from wallaroo_spark.connector import Backoff
from wallaroo_spark.connector.session_keeper import report_ending
from wallaroo_spark.connector.worker_connection import AddressRotation
from wallaroo_spark.errors import RemoteProtocolError, TransportError
from wallaroo_spark.protocol import Error, Restart
from wallaroo_spark.protocol.faults import later, redirect

HERE, THERE = ("10.0.0.1", 7100), ("10.0.0.2", 7100)


def rotation() -> AddressRotation:
    return AddressRotation(Backoff(initial=1.0, maximum=8.0, jitter=0.0), lambda: 0.0, now=0.0)


@pytest.mark.parametrize("began", [None, 90.0])
@pytest.mark.parametrize("last", [Restart("10.0.0.2:7100"), Error(redirect("10.0.0.2:7100", "it moved"))])
def test_a_redirection_is_followed_at_once(last: Restart | Error, began: float | None) -> None:
    made = rotation()
    report_ending(made, HERE, last, 100.0, began=began, progressed=True)

    assert (made.next(), made.delay(100.0), made.failures) == (THERE, 0.0, 0)


def test_a_redirection_without_a_valid_address_is_a_failure() -> None:
    made = rotation()
    report_ending(made, HERE, Restart("nowhere"), 100.0, began=None, progressed=False)

    assert (made.next(), made.failures) == (None, 1)


@pytest.mark.parametrize(("began", "progressed", "failures"), [(99.0, False, 1), (99.0, True, 0), (90.0, False, 0)])
def test_a_lost_session_returns_to_its_worker_and_waits_unless_it_made_progress(
    began: float, progressed: bool, failures: int
) -> None:
    made = rotation()
    report_ending(made, HERE, TransportError("closed"), 100.0, began=began, progressed=progressed)

    assert (made.next(), made.failures) == (HERE, failures)


@pytest.mark.parametrize("last", [TransportError("no answer"), Error(later("no room yet"))])
def test_an_attempt_that_brought_no_session_counts_as_failed(last: TransportError | Error) -> None:
    made = rotation()
    report_ending(made, HERE, last, 100.0, began=None, progressed=False)

    assert (made.next(), made.failures) == (None, 1)


def test_a_refusal_is_final_and_says_the_way_out() -> None:
    with pytest.raises(RemoteProtocolError, match="check that the connector's cookie is the receiver's"):
        report_ending(rotation(), HERE, Error("wrong cookie"), 100.0, began=None, progressed=False)
