"""Tokens: the secret is known to its bearer alone, and opens what its permissions say, while it is valid."""

from __future__ import annotations

import dataclasses

import pytest

from wallaroo_spark.gateway.limits import Refused
from wallaroo_spark.gateway.tokens import AccessRules, KeptToken, create_token
from wallaroo_spark.pipelines.schema.declarations import Permission, TokenDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey

ORDERS = ObjectKey("Stream", "shop", "orders")
TILL = TokenDeclaration(
    name="till", ttl=60, permissions=(Permission(access="publish", kind="Stream", namespace="shop", name="orders"),)
)


def asked(
    text: str,
    kept: KeptToken,
    access: str = "publish",
    key: ObjectKey = ORDERS,
    now: float = 100.0,
    declared: TokenDeclaration = TILL,
) -> str:
    """Why the bearer may not do that; empty if it may."""
    try:
        AccessRules({declared.name: declared}, {kept.id: kept}).check(text, access, key.kind, key.path, now)
    except Refused as problem:
        return problem.message
    return ""


def test_a_token_opens_exactly_its_permissions() -> None:
    text, kept = create_token(TILL, now=100.0)

    assert asked(text, kept) == ""
    assert "does not permit to subscribe with Stream shop/orders" in asked(text, kept, "subscribe")
    assert "does not permit to publish" in asked(text, kept, key=ObjectKey("Stream", "shop", "returns"))


def test_a_token_is_random_and_its_secret_is_not_kept() -> None:
    texts = [create_token(TILL, now=100.0) for _ in range(100)]

    assert len({text for text, _ in texts}) == len({kept.id for _, kept in texts}) == 100
    assert not any(text.rpartition(kept.id + "_")[2] in repr(kept) for text, kept in texts)


def test_a_token_expires_at_its_time_and_ends_with_its_revocation() -> None:
    text, kept = create_token(TILL, now=100.0)

    assert asked(text, kept, now=159.9) == ""
    assert "has expired" in asked(text, kept, now=160.0)
    assert "was revoked" in asked(text, dataclasses.replace(kept, revoked=True))
    for_ever = create_token(dataclasses.replace(TILL, ttl=None), now=100.0)
    assert asked(*for_ever, now=1e12) == ""


def test_permissions_are_those_of_the_schema_of_now() -> None:
    text, kept = create_token(TILL, now=100.0)
    changed = dataclasses.replace(TILL, permissions=(Permission(access="subscribe"),))

    assert "Token 'till' is not in the schema" in asked(text, kept, declared=dataclasses.replace(TILL, name="web"))
    assert asked(text, kept, "subscribe", declared=changed) == ""


@pytest.mark.parametrize("change", [lambda text: " ", lambda text: text[:-1], lambda text: f"{text}x", str.upper])
def test_a_text_that_is_no_token_is_refused_and_not_repeated(change: object) -> None:
    assert callable(change)
    text, kept = create_token(TILL, now=100.0)

    assert asked(change(text), kept) == "the token is not known; create one, or check that the whole token was given"
    assert "the call has no token" in asked("", kept)


def test_the_identifier_alone_proves_nothing() -> None:
    text, kept = create_token(TILL, now=100.0)
    other, _ = create_token(TILL, now=100.0)

    forged = f"wst_{kept.id}_{other.rpartition(other[4:20] + '_')[2]}"

    assert "is not known" in asked(forged, kept)
    assert text not in asked(forged, kept)
