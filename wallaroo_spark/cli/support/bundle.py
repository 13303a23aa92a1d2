"""The archive of ``support``: its parts, the reasons of those that are missing, and its file."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wallaroo_spark.cli.common import reason_of
from wallaroo_spark.cli.support.cleaning import Cleaner
from wallaroo_spark.errors import ConfigurationError

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
