"""The file of tokens: who sends, what a file may have, and what happens when it changes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from wallaroo_spark.doors.senders import LEAST_LENGTH, Senders, read_tokens
from wallaroo_spark.errors import ConfigurationError

SHOP, BILL = "shop-" + "s" * 32, "bill-" + "b" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "tokens"
    found.write_text(f"# our clients\n\nshop {SHOP}\r\n  billing\t{BILL}  \n")
    return found


def test_a_client_is_known_by_its_token(path: Path) -> None:
    senders = Senders("the cookie", str(path))

    assert [senders.who(secret.encode()) for secret in (SHOP, BILL)] == ["shop", "billing"]
    assert [senders.who(secret) for secret in (b"", b"the cookie", SHOP.encode() + b"x", b"\xff\0")] == [None] * 4
    assert not senders.open
    assert SHOP not in repr(vars(senders))


def test_without_a_file_the_cookie_is_the_secret_and_without_both_there_is_none() -> None:
    assert [Senders("a").who(secret) for secret in (b"a", b"b", b"")] == ["", None, None]
    assert Senders("Grüße").who("Grüße".encode()) == ""
    assert Senders("").open
    assert Senders("").who(b"anything") == ""


def test_a_name_may_have_several_tokens_and_a_token_may_be_its_hash(path: Path) -> None:
    hashed = hashlib.sha256(b"short").hexdigest()
    path.write_text(f"shop {SHOP}\nshop {BILL}\nbilling sha256:{hashed}\nGrüße {'ü' * LEAST_LENGTH}\n")

    senders = Senders("", str(path))

    assert [senders.who(one) for one in (SHOP.encode(), BILL.encode(), b"short")] == ["shop", "shop", "billing"]
    assert senders.who(("ü" * LEAST_LENGTH).encode()) == "Grüße"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "has no token"),
        ("# shop\n", "has no token"),
        ("\nshop short", "a token of 5 characters in line 2"),
        ("shop", "in line 1"),
        (f"shop {SHOP} more", "in line 1"),
        (f"shop sha256:{'0' * 63}z more", "in line 1"),
        (f"{'n' * 129} {SHOP}", "in line 1"),
        (f"a\0b {SHOP}", "in line 1"),
        (f"shop {SHOP}\nbilling {SHOP}", "gives 'billing' in line 2 the token of 'shop'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_showing_it(path: Path, content: str, why: str) -> None:
    path.write_text(content)

    with pytest.raises(ConfigurationError) as caught:
        read_tokens(str(path))

    assert why in caught.value.message
    assert str(path) in caught.value.message
    assert SHOP not in caught.value.message


def test_a_file_that_is_not_there_or_is_no_text_is_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"shop \xff\xfe" + b"x" * 20)
    for place in (path, tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match=r"door\.tokens"):
            Senders("", str(place))


def test_a_changed_file_is_read_again(path: Path) -> None:
    senders = Senders("", str(path))
    assert senders.tick(10.0) == ""
    other = path.with_name("other")
    other.write_text(f"billing {SHOP}\n")
    os.replace(other, path)

    assert senders.tick(10.5) == ""
    assert "1 of 1 names" in senders.tick(11.5)
    assert [senders.who(one.encode()) for one in (SHOP, BILL)] == ["billing", None]
    assert senders.tick(13.0) == ""


def test_a_changed_file_that_cannot_be_used_changes_nothing_and_is_named_once(path: Path) -> None:
    senders = Senders("", str(path))
    senders.tick(10.0)
    path.unlink()

    assert "stay valid" in senders.tick(12.0)
    assert senders.tick(14.0) == ""
    assert senders.who(SHOP.encode()) == "shop"
    path.write_text(f"shop {BILL}")
    assert "read again" in senders.tick(16.0)
    assert senders.who(SHOP.encode()) is None
