"""The connectors' port: cookie, certificate, and the name in it."""

from __future__ import annotations

import hmac
import ssl

import pyarrow.flight as flight
import pytest

from tests.pems import Pems
from tests.revisions import revisions
from tests.security.conftest import Ear
from tests.security.keys import GUESS, trusting
from tests.waiting import eventually
from tests.worker.peer import Peer
from tests.worker.running import COOKIE, TOKEN, Running
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.inner.client import status_token, tap_token
from wallaroo_spark.protocol import DRAFT_BE, V3, Error, Frame, Hello, Message, Notify, Ok, Revision
from wallaroo_spark.protocol.sessions.worker_session import WorkerSession
from wallaroo_spark.worker.flight_server import _TokenCheck

WRONG_COOKIES = ["", GUESS, COOKIE[:-1], COOKIE + "x", COOKIE.upper(), f" {COOKIE}"]


def answer(peer: Peer, cookie: str = COOKIE) -> Frame | None:
    """The answer to a HELLO; None when the connection ends without an answer."""
    try:
        peer.send(peer.session.hello(version="0.0.1", cookie=cookie.encode(), program="", instance=peer.instance))
        return peer.next()
    except OSError:
        return None


class TestConnectors:
    @revisions
    @pytest.mark.parametrize("cookie", WRONG_COOKIES)
    def test_another_cookie_is_sent_away(self, plain: Running, revision: Revision, cookie: str) -> None:
        before = plain.count("fault:wrong-cookie")
        peer = Peer(plain, revision, "stranger")

        assert answer(peer, cookie) == Error("the cookie is not the one that is expected here")
        assert peer.next() is None
        assert plain.count("fault:wrong-cookie") == before + 1

    @revisions
    @pytest.mark.parametrize("frame", [Notify(1, "a stream", 0), Message(1, 1, b"x")], ids=["NOTIFY", "MESSAGE"])
    def test_without_a_hello_nothing_is_taken_or_told(self, plain: Running, revision: Revision, frame: Frame) -> None:
        before = plain.count("messages")
        peer = Peer(plain, revision, "stranger")
        peer.raw(frame)

        assert peer.next() is None
        assert plain.count("messages") == before
        assert "stranger" not in plain.client.status()["connected"]

    def test_the_right_cookie_opens(self, plain: Running) -> None:
        assert isinstance(answer(Peer(plain, DRAFT_BE, "friend")), Ok)

    def test_plain_text_is_closed_without_an_answer_by_a_tls_listener(self, sealed: Running, ear: Ear) -> None:
        peer = Peer(sealed, V3, "plain")

        assert answer(peer) is None
        eventually(lambda: any("TLS handshake with 127.0.0.1" in line for line in ear.lines))

    def test_a_worker_of_a_stranger_s_authority_is_not_told_the_cookie(self, sealed: Running, pems: Pems) -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            Peer(sealed, DRAFT_BE, "careful", trusting(pems.other_ca))

    def test_the_right_authority_opens_and_messages_are_taken(self, sealed: Running, pems: Pems) -> None:
        Peer(sealed, DRAFT_BE, "good", trusting(pems.ca)).hello().open(1).message(1, 1)

        assert len(sealed.rows("good", 1, None, 1)) == 1

    def test_no_certificate_or_a_stranger_s_is_turned_away(self, mutual: Running, pems: Pems) -> None:
        for own in ((), (pems.forged, pems.forged_key)):
            try:
                peer = Peer(mutual, DRAFT_BE, "shop-1", trusting(pems.ca, *own))
            except OSError:
                continue
            assert answer(peer) is None
        assert "shop-1" not in mutual.client.status()["connected"]

    def test_a_certificate_is_good_for_its_own_instance_alone(self, mutual: Running, pems: Pems) -> None:
        own = trusting(pems.ca, pems.client, pems.client_key)
        before = mutual.count("fault:wrong-certificate")
        refused = answer(Peer(mutual, DRAFT_BE, "shop-2", own))

        assert isinstance(refused, Error)
        assert "not among the names in its certificate: shop-1, shop-1.example" in refused.reason
        assert mutual.count("fault:wrong-certificate") == before + 1
        assert isinstance(answer(Peer(mutual, DRAFT_BE, "shop-1", own)), Ok)

    def test_a_certificate_does_not_stand_in_for_the_cookie(self, mutual: Running, pems: Pems) -> None:
        own = trusting(pems.ca, pems.client, pems.client_key)

        assert isinstance(answer(Peer(mutual, DRAFT_BE, "shop-1", own), GUESS), Error)

    def test_the_time_that_a_comparison_takes_tells_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compared: list[tuple[bytes, bytes]] = []
        honest = hmac.compare_digest
        monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or honest(a, b))
        session = WorkerSession(version="0.0.1", cookie=COOKIE.encode())
        session.receive(DRAFT_BE.encode(Hello("0.0.1", GUESS.encode(), "", "stranger")))
        with pytest.raises(WallarooError, match="the cookie is not the one"):
            session.next_event()
        with pytest.raises(flight.FlightUnauthenticatedError):
            _TokenCheck(TOKEN).start_call(None, {"authorization": [f"Bearer {GUESS}"]})

        assert compared == [
            (GUESS.encode(), COOKIE.encode()),
            (f"Bearer {GUESS}".encode(), f"Bearer {TOKEN}".encode()),
            (f"Bearer {GUESS}".encode(), f"Bearer {status_token(TOKEN)}".encode()),
            (f"Bearer {GUESS}".encode(), f"Bearer {tap_token(TOKEN)}".encode()),
        ]
