"""Tokens: random secrets that are shown once, kept as hashes in files, and checked against permissions.

The files are ``<folder>/_wallaroo/tokens/<id>.json`` of an application.
A token is the text ``wst_<id>_<secret>``. The identifier finds the kept token, and the hash of the secret proves it.
The secret has 256 random bits, so a plain SHA-256 is enough: there is nothing to guess. Source:
``docs/pipelines/gateway.md#tokens``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import PipelineError, one_line
from wallaroo_spark.gateway.limits import Refused
from wallaroo_spark.json_text import load_json
from wallaroo_spark.pipelines.schema.declarations import TokenDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.places import TOKENS

log = one_line("wallaroo_spark.gateway")

_FORMAT = 1
_FILE = re.compile(r"([0-9a-f]{16})\.json")
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


class TokenStore:
    """The tokens of the application at ``location``. Methods raise :class:`wallaroo_spark.errors.CheckpointError`."""

    def __init__(self, location: Location, spark: Any = None) -> None:
        self._folder = SidecarFolder(location, TOKENS, spark=spark)
        self._named: set[str] = set()
        """The problems that the log has."""

    def create(self, declared: TokenDeclaration, now: float) -> tuple[str, KeptToken]:
        """Create a token of a declared name; return its text, which is kept nowhere, and the kept token."""
        text, token = create_token(declared, now)
        if not self._folder.create(f"{token.id}.json", _content(token)):
            raise PipelineError(f"there is a token {token.id} already; create another", code="token-unknown")
        return text, token

    def list(self) -> dict[str, KeptToken]:
        """Return all tokens by their identifiers, the oldest first.

        A file that cannot be understood is no token, so its bearer is refused, and nobody else; the log names it once.
        """
        found = [self._understood(match[1]) for name in self._folder.names() if (match := _FILE.fullmatch(name))]
        tokens = sorted((token for token in found if token is not None), key=lambda token: (token.created_at, token.id))
        return {token.id: token for token in tokens}

    def revoke(self, id: str) -> KeptToken:
        """Revoke a token, for ever; gateways refuse it within a lease. Raises :class:`PipelineError` without one."""
        token = self._read(id) if _FILE.fullmatch(f"{id}.json") else None
        if token is None:
            raise PipelineError(
                f"there is no token {id[:100]!r} in {self._folder.identity}; list the tokens, and give the identifier "
                "of one",
                code="token-unknown",
            )
        token = dataclasses.replace(token, revoked=True)
        self._folder.write(f"{id}.json", _content(token))
        return token

    def _understood(self, id: str) -> KeptToken | None:
        try:
            return self._read(id)
        except PipelineError as problem:
            if problem.message not in self._named:
                self._named.add(problem.message)
                log.warning("%s", problem.message)
            return None

    def _read(self, id: str) -> KeptToken | None:
        content = self._folder.read(f"{id}.json")
        if content is None:
            return None
        where = f"{self._folder.identity}/{id}.json"
        try:
            stored = load_json(content)
            if stored.pop("format") != _FORMAT or stored["id"] != id:
                raise ValueError("its format or its identifier differs")
            token = KeptToken(**stored)
            if not all(isinstance(at, float | int) for at in (token.created_at, token.expires_at or 0)):
                raise ValueError("a time in it is no number")
            if not (isinstance(token.name, str) and isinstance(token.hash, str) and token.hash.isascii()):
                raise ValueError("its name or its hash is no text")
            return token
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(
                f"{where} is not a token as this version writes it ({error}); use the version of wallaroo-spark that "
                "wrote it, or delete the file, which revokes the token",
                code="schema-unreadable",
                location=where,
            ) from error


def _content(token: KeptToken) -> bytes:
    return json.dumps({"format": _FORMAT, **dataclasses.asdict(token)}, indent=1).encode()
