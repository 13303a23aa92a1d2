"""The tokens of an application as files: ``<folder>/_wallaroo/tokens/<id>.json``, with hashes and without secrets.

Source: ``docs/pipelines/gateway.md#tokens``.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from typing import Any

from wallaroo_spark.errors import PipelineError, one_line
from wallaroo_spark.gateway.tokens import KeptToken, create_token
from wallaroo_spark.pipelines.schema.declarations import TokenDeclaration
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.places import TOKENS

log = one_line(logging.getLogger("wallaroo_spark.gateway"))

_FORMAT = 1
_FILE = re.compile(r"([0-9a-f]{16})\.json")


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
            stored = json.loads(content)
            if stored.pop("format") != _FORMAT or stored["id"] != id:
                raise ValueError("its format or its identifier differs")
            token = KeptToken(**stored)
            if not all(isinstance(at, float | int) for at in (token.created_at, token.expires_at or 0)):
                raise ValueError("a time in it is no number")
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
