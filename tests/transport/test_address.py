"""Addresses as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.transport import format_address, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker-1:7100", ("worker-1", 7100)),
        (" 10.0.0.7:1 ", ("10.0.0.7", 1)),
        ("[::1]:7100", ("::1", 7100)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_an_address_is_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


def test_a_list_keeps_its_order_and_skips_empty_entries() -> None:
    assert parse_addresses("b:2, a:1,,[::1]:3,") == [("b", 2), ("a", 1), ("::1", 3)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("worker", "has no port"),
        ("", "has no port"),
        (":7100", "has no host"),
        ("[]:7100", "brackets around a text that is not"),
        ("[worker]:7100", "brackets around a text that is not"),
        ("::1:7100", "without brackets"),
        ("[::1]", "without brackets"),
        ("a b:7100", "has no host"),
        ("user@host:1", "has no host"),
        ("host:", "has port ''"),
        ("host:0", "has port '0'"),
        ("host:65536", "has port '65536'"),
        ("host:-1", "has port '-1'"),
        ("host:７", "not a number"),
    ],
)
def test_a_text_that_is_not_an_address_is_named_with_an_example(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_address(text)
    assert problem in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "worker-1:7100" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "redis://:geheim@host:6379/0",
            "'redis://…' is a URL and not an address; give the URL of a registry as registry",
        ),
        (
            "rediss+cluster://:geheim@host",
            "'rediss+cluster://…' is a URL and not an address; give the URL of a registry",
        ),
        ("tcp://geheim:7100", "'tcp://…' is a URL and not an address; leave tcp:// out, or write host:port"),
    ],
)
def test_a_url_is_named_without_what_may_be_secret(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_address(text)
    assert said in str(caught.value)
    assert "geheim" not in f"{caught.value} {caught.value.fields}"


@pytest.mark.parametrize("text", ["", " ", ",,"])
def test_an_empty_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="has no address"):
        parse_addresses(text)


@given(st.sampled_from(["worker", "10.0.0.1", "::1", "2001:db8::7"]), st.integers(1, 65535))
def test_a_formatted_address_is_parsed_back(host: str, port: int) -> None:
    assert parse_address(format_address(host, port)) == (host, port)
