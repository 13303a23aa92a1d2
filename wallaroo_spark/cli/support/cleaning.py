"""Removes secrets from texts and from JSON values: known ones, and those that their place or name shows.

These are hidden in every text: a known secret wherever it stands, the user and the password in a URL, a value behind a
name such as ``password=``, the credentials of an Authorization header, and a private key in PEM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import is_reference, resolve_secret
from wallaroo_spark.runtime.logs import HIDDEN, hide, secrets_of

_NAMES = r"secret|passw|passphrase|token|cookie|credential|access[._-]?key|private[._-]?key|api[._-]?key|authorization"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^\s/@\"']+@")
_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_HEADER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE)
# Every part is bounded or ends with the line, so that the search takes no longer than the text is long.
_NAMED = re.compile(
    rf"""(?P<name>(?:{_NAMES})[\w.-]{{0,60}}["']?[ \t]{{0,8}}[:=][ \t]{{0,8}})"""
    r"""(?P<value>b?"(?:\\.|[^"\\\n])*"?|b?'(?:\\.|[^'\\\n])*'?|[^\s,;&"')}\]]+)""",
    re.IGNORECASE,
)


def names_secret(name: str) -> bool:
    """Whether the name of a setting, a field or a variable is that of a secret."""
    return _SECRET_NAME.search(name) is not None


class Cleaner:
    """The known secrets, and the removal of secrets from texts."""

    def __init__(self) -> None:
        self._known: tuple[str, ...] = ()
        """The known secrets in all their forms, the longest first."""

    def learn(self, value: str, *, whole: bool = True) -> None:
        """Add a secret, given by itself or as ``env:NAME`` or ``file:PATH``, and the password in it if it is a URL.

        Without ``whole`` only that password is a secret.
        """
        try:
            secret = resolve_secret(value)
        except ConfigurationError:
            # This machine does not have it, so it stands in none of its files.
            return
        found = secrets_of(secret, secret if whole else "")
        self._known = secrets_of("", *self._known, *(form for text in found for form in _forms(text)))

    def learn_named(self, values: Any) -> None:
        """Add each text in a JSON value whose name is that of a secret."""
        if isinstance(values, Mapping):
            for name, value in values.items():
                if isinstance(value, str) and names_secret(str(name)):
                    self.learn(value)
                elif isinstance(value, str):
                    self.learn(value if "://" in value else "", whole=False)
                else:
                    self.learn_named(value)
        elif isinstance(values, list | tuple):
            for value in values:
                self.learn_named(value)

    def text(self, text: str) -> str:
        """The text without secrets."""
        cleaned = _IN_URL.sub(f"{HIDDEN}@", _KEY.sub(HIDDEN, hide(text, self._known)))
        return _NAMED.sub(_hide_value, _HEADER.sub(rf"\1 {HIDDEN}", cleaned))

    def json(self, value: Any, name: str = "") -> Any:
        """The JSON value without secrets; ``name`` is the name of the field that holds it."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.json(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(inner, name) for inner in value]
        if isinstance(value, str):
            if name and names_secret(name) and value and not is_reference(value):
                return HIDDEN
            return self.text(value)
        return value


def _forms(secret: str) -> list[str]:
    """The forms in which a secret may be written: plain, in a text of JSON, and quoted or not as a part of a URL."""
    return [secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote(secret), unquote(secret)]


def _hide_value(found: re.Match[str]) -> str:
    value = found["value"]
    mark = value[-1] if value[-1] in "\"'" else ""
    if is_reference(value.strip("\"'")):
        return found[0]
    return f"{found['name']}{mark}{HIDDEN}{mark}"
