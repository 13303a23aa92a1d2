"""Tokens: random secrets that are shown once, kept as hashes, and checked against permissions. Pure functions.

A token is the text ``wst_<id>_<secret>``. The identifier finds the kept token, and the hash of the secret proves it.
The secret has 256 random bits, so a plain SHA-256 is enough: there is nothing to guess. Gateways check tokens, and keep
them in files.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from wallaroo_spark.pipelines.declarations import TokenDeclaration
from wallaroo_spark.pipelines.names import ObjectKey

_ID_BYTES = 8
_SECRET_BYTES = 32
_TOKEN = re.compile(r"wst_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class KeptToken:
    """A token as it is kept, without its secret."""

    id: str
    """The identifier, which is a part of the token's text and no secret."""
    name: str
    """The name of the Token in the schema, which has the permissions."""
    hash: str
    """The SHA-256 of the secret, in hexadecimal digits."""
    created_at: float
    """When it was created, in seconds since 1970 UTC."""
    expires_at: float | None = None
    """From when on it is not valid, in seconds since 1970 UTC; None: it does not expire."""
    revoked: bool = False
    """Whether it was revoked."""


def create_token(declared: TokenDeclaration, now: float) -> tuple[str, KeptToken]:
    """Return the text of a new token, which is not kept anywhere, and the token to keep. ``now`` is in seconds."""
    id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    expires_at = None if declared.ttl is None else now + declared.ttl
    return f"wst_{id}_{secret}", KeptToken(id, declared.name, _hash(secret), now, expires_at)


def refusal(
    text: str,
    access: str,
    key: ObjectKey,
    kept: Mapping[str, KeptToken],
    declared: Mapping[str, TokenDeclaration],
    now: float,
) -> str:
    """Return why the bearer of a token may not ``publish`` to or ``subscribe`` to an object; empty if it may.

    ``kept`` has the tokens by identifier, ``declared`` the Tokens of the schema by name. Neither the text nor its
    secret is in the answer.
    """
    return token_problem(text, kept, declared, now) or permission_problem(text, access, key, kept, declared)


def token_problem(
    text: str, kept: Mapping[str, KeptToken], declared: Mapping[str, TokenDeclaration], now: float
) -> str:
    """Return why a token is not valid for anything; empty if it is valid. Arguments as of :func:`refusal`."""
    found = _TOKEN.fullmatch(text)
    token = kept.get(found[1]) if found else None
    if found is None or token is None or not hmac.compare_digest(_hash(found[2]), token.hash):
        return "the token is not known; create one, or check that the whole token was given"
    if token.revoked:
        return f"token {token.id} of {token.name!r} was revoked; create another"
    if token.expires_at is not None and now >= token.expires_at:
        return f"token {token.id} of {token.name!r} has expired; create another"
    if token.name not in declared:
        return f"token {token.id} has no permissions, because Token {token.name!r} is not in the schema; declare it"
    return ""


def permission_problem(
    text: str, access: str, key: ObjectKey, kept: Mapping[str, KeptToken], declared: Mapping[str, TokenDeclaration]
) -> str:
    """Return why the bearer of a valid token has no such access to an object; empty if it has."""
    token = kept[_TOKEN.fullmatch(text)[1]]  # type: ignore[index]  # a valid token has this form
    if not any(permission.permits(access, key) for permission in declared[token.name].permissions):
        return f"token {token.id} of {token.name!r} does not permit to {access} with {key}; add it to its permissions"
    return ""


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
