"""Which gateway has the receivers of an exchange, or the consumers of an endpoint. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def owner_of(kind: str, path: str, gateways: Iterable[str]) -> str:
    """The owner of an object among gateways; empty without one.

    Each object goes to the gateway with the greatest hash of both, so a gateway that comes or goes moves only its own.
    """
    return max(gateways, key=lambda gateway: _weight(f"{kind} {path} {gateway}"), default="")


def _weight(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
