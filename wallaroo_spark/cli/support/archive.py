"""The archive of ``support``: its parts, the reasons of those that are missing, and its file, without secrets.

These are hidden in every text and JSON value: a known secret wherever it stands, the user and the password in a URL, a
value behind a name such as ``password=``, the credentials of an Authorization header, and a private key in PEM.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from wallaroo_spark.cli.common import reason_of
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import is_reference, resolve_secret
from wallaroo_spark.runtime.python_tasks import HIDDEN, hide, secrets_of

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


PART_SECONDS = 60.0
"""The longest wait for one part. A choice: Redis, workers and file systems have shorter limits of their own."""


class Bundle:
    """Collects parts, and writes them once all secrets are known."""

    def __init__(self, cleaner: Cleaner) -> None:
        self.cleaner = cleaner
        self._parts: list[tuple[str, str, Any]] = []
        self._missing: list[tuple[str, str]] = []

    def collect(self, name: str, about: str, part: Callable[[], Any]) -> None:
        """Add what ``part`` returns: a text, or a value for JSON. Its error, or its silence, is a reason.

        ``about`` is its content in a few words. Raises nothing but what ends the program.
        """
        answers: list[Any] = []
        reasons: list[str] = []

        def run() -> None:
            try:
                answers.append(part())
            except ModuleNotFoundError as error:
                reasons.append(f"{error.name} is not installed here")
            except Exception as error:
                # A part calls Redis clients, Spark's storage and other programs, each with errors of its own.
                reasons.append(reason_of(error))

        thread = threading.Thread(target=run, name=f"support-{name}", daemon=True)
        thread.start()
        thread.join(PART_SECONDS)
        if answers:
            self._parts.append((name, about, answers[0]))
        else:
            self.miss(name, reasons[0] if reasons else f"it took more than {PART_SECONDS:g} s")

    def miss(self, name: str, reason: str) -> None:
        """Note that a part, or something in it, was not reached; the reason is a sentence."""
        self._missing.append((name, reason))

    def write(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        """Write the archive; returns the list of its parts and of those that it lacks, which it has, too.

        Raises :class:`ConfigurationError` when its file cannot be written, or exists.
        """
        clean = self.cleaner.text
        collected: list[dict[str, Any]] = []
        missing = [{"name": clean(name), "reason": clean(reason)} for name, reason in self._missing]
        contents = {"collected": collected, "missing": missing}
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                top = clean(path.name.removesuffix(".tgz").removesuffix(".tar.gz"))
                for name, about, content in self._parts:
                    data = self._cleaned(content)
                    collected.append({"name": clean(name), "about": clean(about), "bytes": len(data)})
                    _add(archive, f"{top}/{clean(name)}", data)
                _add(archive, f"{top}/contents.json", _json(contents))
        except FileExistsError:
            raise ConfigurationError(
                f"file {path} exists; name another one with --output, or remove it", code="file-unwritable"
            ) from None
        except OSError as error:
            path.unlink(missing_ok=True)
            raise ConfigurationError(
                f"file {path} cannot be written: {error.strerror}; name another place with --output",
                code="file-unwritable",
            ) from None
        return contents

    def _cleaned(self, content: Any) -> bytes:
        if isinstance(content, str):
            return self.cleaner.text(content).encode("utf-8", "replace")
        return _json(self.cleaner.json(content))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n").encode("utf-8", "replace")


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
