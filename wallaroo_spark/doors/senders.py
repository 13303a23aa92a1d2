"""Who may send through the doors of a worker: everybody, whoever knows the cookie, or the names of ``door.tokens``.

The file has a name and its token in each line. Only hashes of tokens are kept; a token has to be long and random, so a
plain SHA-256 is enough. Source: ``docs/doors.md#who-may-send``.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path

from wallaroo_spark.errors import ConfigurationError

LEAST_LENGTH = 16
"""The fewest characters of a token. A choice, that of the status page's."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at the file. A choice."""
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_MOST_NAME = 128


class Senders:
    """The clients that a worker knows by what they present. ``cookie`` is not one of it where ``path`` has tokens.

    The constructor raises :class:`ConfigurationError` for a file that cannot be used.
    """

    def __init__(self, cookie: str, path: str = "") -> None:
        self.path = path
        self._cookie = cookie.encode()
        self._names: Mapping[bytes, str] = {}
        self._seen: tuple[int, ...] | None = None
        self._look_at = 0.0
        if path:
            self._seen = _state(path)
            self._names = read_tokens(path)

    @property
    def open(self) -> bool:
        """Whether everybody may send."""
        return not self._cookie and not self.path

    @property
    def secret(self) -> str:
        """What a client has to present, as a part of a sentence."""
        return "a token of the receiver's door.tokens" if self.path else "the receiver's cookie"

    def who(self, secret: bytes) -> str | None:
        """The name of the client that presents a secret; empty for one without a name, None for one that is unknown.

        The time that this takes tells nothing about a secret.
        """
        if self.path:
            return self._names.get(hashlib.sha256(secret).digest())
        return "" if not self._cookie or hmac.compare_digest(secret, self._cookie) else None

    def tick(self, now: float) -> str:
        """Read the file again when it has changed; ``now`` is in monotonic seconds. Returns what to log about it.

        A file that cannot be used changes nothing.
        """
        if not self.path or now < self._look_at:
            return ""
        self._look_at = now + LOOK_SECONDS
        state = _state(self.path)
        if state == self._seen:
            return ""
        self._seen = state
        try:
            self._names = read_tokens(self.path)
        except ConfigurationError as error:
            return f"{error.message}; the former tokens stay valid until it can be used"
        names = len(set(self._names.values()))
        return f"the tokens of {self.path} were read again: {len(self._names)} of {names} names"


def read_tokens(path: str) -> dict[bytes, str]:
    """The names of a file of tokens, by the SHA-256 of each token. Raises :class:`ConfigurationError`."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _unusable(path, "is not UTF-8 text") from None
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        match line.split():
            case []:
                continue
            case [first, *_] if first.startswith("#"):
                continue
            case [name, token] if len(name) <= _MOST_NAME and name.isprintable():
                hashed = _HASH.fullmatch(token)
                if hashed is None and len(token) < LEAST_LENGTH:
                    raise _unusable(path, f"has a token of {len(token)} characters in line {number}; {_LINE}")
                digest = bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(token.encode()).digest()
                if found.setdefault(digest, name) != name:
                    raise _unusable(path, f"gives {name!r} in line {number} the token of {found[digest]!r}")
            case _:
                raise _unusable(path, f"cannot be read in line {number}; {_LINE}")
    if not found:
        raise _unusable(path, f"has no token; {_LINE}")
    return found


_LINE = f"a line is NAME TOKEN, with a token of at least {LEAST_LENGTH} characters or sha256: and its hash"


def _unusable(path: str, why: str) -> ConfigurationError:
    """The error of a file; no line of it is shown, because it may have a token anywhere."""
    return ConfigurationError(
        f"option door.tokens: the file {path} {why}", code="secret-unavailable", option="door.tokens", path=path
    )


def _state(path: str) -> tuple[int, ...] | None:
    """What changes with a file; None when there is none."""
    try:
        told = os.stat(path)
    except OSError:
        return None
    return (told.st_mtime_ns, told.st_size, told.st_ino)
