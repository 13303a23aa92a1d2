"""Tokens: random secrets that are shown once, kept as hashes, and checked against permissions. Pure.

A token is the text ``wst_<id>_<secret>``. The identifier finds the kept token, and the hash of the secret proves it.
The secret has 256 random bits, so a plain SHA-256 is enough: there is nothing to guess. Source:
``docs/pipelines/gateway.md#tokens``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from wallaroo_spark.gateway.limits import Refused
from wallaroo_spark.pipelines.schema.declarations import TokenDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey

PUBLISH = "publish"
SUBSCRIBE = "subscribe"
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


@dataclass(frozen=True)
class AccessRules:
    """The tokens of an application, and their permissions."""

    declared: Mapping[str, TokenDeclaration] = field(default_factory=dict)
    """The Tokens of the schema, which have the permissions, by name."""
    kept: Mapping[str, KeptToken] = field(default_factory=dict)
    """The tokens, by identifier."""

    @property
    def open(self) -> bool:
        """Whether no Token is declared, so that everybody may do everything."""
        return not self.declared

    def check(self, text: str, access: str, kind: str, path: str, now: float) -> None:
        """Raise :class:`Refused` unless the bearer of a token has this access to an object. ``now`` is in seconds.

        Neither the text nor its secret is in the error.
        """
        token = self.check_token(text, now)
        if token is None:
            return
        namespace, _, name = path.rpartition("/")
        key = ObjectKey(kind, namespace[:200], name[:200])
        if not any(permission.permits(access, key) for permission in self.declared[token.name].permissions):
            problem = f"token {token.id} of {token.name!r} does not permit to {access} with {key}"
            raise Refused(f"{problem}; add it to its permissions", code="permission-missing")

    def check_token(self, text: str, now: float) -> KeptToken | None:
        """The token of a text; None where none is needed. Raises :class:`Refused` for one that is not valid."""
        if self.open:
            return None
        if not text:
            raise _refused(
                "the call has no token; send the metadata 'authorization: Bearer <token>' with one that "
                "wallaroo-spark token create has made"
            )
        found = _TOKEN.fullmatch(text)
        token = self.kept.get(found[1]) if found else None
        if found is None or token is None or not hmac.compare_digest(_hash(found[2]), token.hash):
            raise _refused("the token is not known; create one, or check that the whole token was given")
        name = f"token {token.id} of {token.name!r}"
        if token.revoked:
            raise _refused(f"{name} was revoked; create another")
        if token.expires_at is not None and now >= token.expires_at:
            raise _refused(f"{name} has expired; create another")
        if token.name not in self.declared:
            raise _refused(
                f"token {token.id} has no permissions, because Token {token.name!r} is not in the schema; declare it"
            )
        return token


def bearer(authorization: str) -> str:
    """The token in the metadata ``authorization``; empty without one."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _refused(problem: str) -> Refused:
    return Refused(problem, code="token-refused")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
