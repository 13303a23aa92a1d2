"""Back-off, redirections and giving up, without a clock."""

from __future__ import annotations

from wallaroo_spark.connector import Backoff
from wallaroo_spark.connector.worker_connection import BEHIND_SECONDS, REDIRECTS_IN_A_ROW, AddressRotation

A, B, C = ("a", 1), ("b", 2), ("c", 3)


def route(**backoff: float) -> AddressRotation:
    made = AddressRotation(Backoff(jitter=0, **backoff), lambda: 0.0, now=0.0)  # type: ignore[arg-type]  # numbers of one kind
    made.replace([A, B])
    return made


class TestOrder:
    def test_addresses_are_tried_in_turn(self) -> None:
        found = route()
        tried = []
        for _ in range(3):
            tried.append(found.next())
            found.failed("x", "refused")
        assert tried == [A, B, A]

    def test_connectors_with_a_number_in_their_names_spread_evenly_and_begin_where_they_did(self) -> None:
        def first(instance: str) -> object:
            made = AddressRotation(Backoff(), lambda: 0.0, 0.0, instance)
            made.replace([("a", 1), ("b", 1), ("c", 1)])
            return made.next()

        names = [f"shop-{number}" for number in range(1, 10)]
        begins = [first(name) for name in names]
        assert sorted(begins.count(address) for address in set(begins)) == [3, 3, 3]
        assert [first(name) for name in names] == begins

    def test_a_redirection_is_followed_at_once_and_first(self) -> None:
        found = route()
        found.next()
        found.failed("a:1", "refused")
        found.next()
        found.redirected("b:2", C)
        assert found.delay(1.0) == 0
        assert found.next() == C

    def test_the_address_of_the_last_session_is_tried_first(self) -> None:
        found = route()
        assert found.next() == A
        found.connected()
        found.ended(A, "cut", 5.0, progressed=True)
        assert found.next() == A
        found.failed("a:1", "refused")
        assert found.next() == B

    def test_there_is_no_next_address_where_none_is_known(self) -> None:
        found = route()
        found.replace([])
        assert found.next() is None


class TestDelays:
    def test_the_first_attempt_and_the_one_after_a_session_with_progress_do_not_wait(self) -> None:
        found = route()
        assert found.delay(0.0) == 0
        found.failed("a:1", "refused")
        assert found.delay(0.0) > 0
        found.connected()
        found.ended(A, "cut", 1.0, progressed=True)
        assert found.delay(1.0) == 0

    def test_sessions_without_progress_wait_longer_each_time(self) -> None:
        found = route(initial=1, maximum=8)
        delays = []
        for _ in range(5):
            found.connected()
            found.ended(A, "restart", 0.0, progressed=False)
            delays.append(found.delay(0.0))
        assert delays == [1, 2, 4, 8, 8]

    def test_redirections_in_a_row_count_as_a_failure_in_the_end(self) -> None:
        found = route()
        for _ in range(REDIRECTS_IN_A_ROW):
            found.redirected("a:1", B)
            assert found.delay(0.0) == 0
        found.redirected("a:1", B)
        assert (found.failures, found.delay(0.0) > 0) == (1, True)

    def test_redirections_between_sessions_without_progress_are_bounded_too(self) -> None:
        found = route()
        for _ in range(REDIRECTS_IN_A_ROW + 1):
            found.connected()
            found.ended(A, "restart", 0.0, progressed=False)
            found.redirected("a:1", B)
        assert found.delay(0.0) > 0

    def test_a_delay_does_not_outlast_the_limit(self) -> None:
        found = route(initial=10, give_up_after=12)
        found.failed("a:1", "refused")
        assert found.delay(0.0) == 10
        assert found.delay(9.0) == 3


class TestGivingUp:
    def test_the_error_names_addresses_counts_time_and_the_last_reason(self) -> None:
        found = route(give_up_after=60)
        for where in ("a:1", "b:2", "a:1"):
            found.failed(where, f"{where} refused")
        assert found.given_up(59.9) is None
        error = found.given_up(60.0)
        assert error is not None
        assert "60.0 seconds; tried a:1 (2 times), b:2 (1 times); the last reason was: a:1 refused" in error.message
        assert error.fields["tried"] == {"a:1": 2, "b:2": 1}

    def test_a_limit_of_attempts_counts_those_since_the_last_session(self) -> None:
        found = route(attempts=2)
        found.failed("a:1", "refused")
        found.connected()
        found.ended(A, "cut", 0.0, progressed=False)
        found.failed("a:1", "refused")
        assert found.given_up(0.0) is None
        found.failed("a:1", "refused")
        assert found.given_up(0.0) is not None

    def test_a_long_session_is_not_held_against_the_next_attempt(self) -> None:
        found = route(give_up_after=60)
        found.connected()
        found.ended(A, "cut", 10_000.0, progressed=False)
        found.failed("a:1", "refused")
        assert found.given_up(10_001.0) is None


class TestWorkersThatWantWhatWasAcknowledged:
    def test_they_are_asked_again_at_the_same_address_until_the_time_is_over(self) -> None:
        found = route(initial=1, maximum=2)
        for now in (10.0, 11.0, 10.0 + BEHIND_SECONDS - 0.1):
            assert found.behind(B, "wanted again", now)
            assert found.delay(now) > 0
            assert found.next() == B
        assert not found.behind(B, "wanted again", 10.0 + BEHIND_SECONDS)

    def test_a_session_that_ends_for_another_reason_begins_the_time_again(self) -> None:
        found = route()
        assert found.behind(A, "wanted again", 10.0)
        found.ended(A, "cut", 12.0, progressed=True)
        assert found.behind(A, "wanted again", 10.0 + BEHIND_SECONDS)

    def test_the_limits_of_the_back_off_hold_too(self) -> None:
        found = route(attempts=2)
        assert found.behind(A, "wanted again", 10.0)
        assert not found.behind(A, "wanted again", 10.1)
