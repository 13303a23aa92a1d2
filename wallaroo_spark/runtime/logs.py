"""The log of a Python process that Spark starts on an executor: lines with time, level and slot on standard error.

Nothing configures logging in such a process, so without this its log would have warnings only, without their time.
Spark stores its standard error as the executor's ``stderr``. Source: ``docs/monitoring.md#logs``.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

LEVELS = ("auto", "debug", "info", "warning", "error")
"""The values of the option ``logLevel``."""
_LOCAL = re.compile(r"local(\[.*\])?$")
"""Spark's masters without executors of their own. ``local-cluster`` has them, with files for their standard error."""
FORMATS = ("text", "json")
"""The values of the option ``logFormat``."""
HIDDEN = "***"
"""Stands in a line in place of a secret."""
SHORTEST_SECRET = 4
"""Minimum length in characters of a secret that is hidden. A choice: a shorter text occurs in ordinary words."""


@dataclass(frozen=True)
class LogSettings:
    """The format and the least level of log lines, and the secrets to hide in them. It is pickled."""

    receiver: str
    """Name of the receiver, or of the application of durable streams."""
    level: str = "info"
    """The least level: ``debug``, ``info``, ``warning`` or ``error``."""
    format: str = "text"
    """``text``, or ``json`` for a JSON object in each line."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that must not be in any line: the receiver's secrets."""
    names: tuple[str, str] = ("receiver", "slot")
    """The names of the fields of JSON that have the receiver and the slot; of a gateway ``application`` and
    ``gateway``."""


def secrets_of(registry: str, *others: str) -> tuple[str, ...]:
    """The texts to hide: the password in the registry's URL, and other secrets; short ones are left out."""
    try:
        password = urlsplit(registry).password or ""
    except ValueError:
        password = registry
    found = dict.fromkeys((password, *others))
    return tuple(sorted((one for one in found if len(one) >= SHORTEST_SECRET), key=len, reverse=True))


def least_level(level: str, master: str) -> str:
    """The level for a value of the option ``logLevel`` and Spark's master; an empty master is not known.

    In local mode the workers' standard error is that of the user's program, so ``auto`` has warnings only there.
    """
    if level != "auto":
        return level
    return "warning" if _LOCAL.match(master) else "info"


class LineFormatter(logging.Formatter):
    """Formats a record as one line of text or of JSON.

    ``slot`` is the slot, or the name of the gateway; None for a process that serves no slot.
    """

    def __init__(self, settings: LogSettings, slot: int | str | None) -> None:
        super().__init__()
        self._settings = settings
        self._slot = slot

    def format(self, record: logging.LogRecord) -> str:
        """The line. A traceback follows a line of text, and is a field of a line of JSON."""
        line = self._json(record) if self._settings.format == "json" else self._text(record)
        return hide(line, self._settings.secrets)

    def _text(self, record: logging.LogRecord) -> str:
        place = self._settings.receiver if self._slot is None else f"{self._settings.receiver}/{self._slot}"
        line = f"{_time(record)} {record.levelname} {place} {record.name}: {record.getMessage()}"
        return "\n".join(filter(None, (line, self._trace(record))))

    def _json(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            self._settings.names[0]: self._settings.receiver,
            self._settings.names[1]: self._slot,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := self._trace(record):
            fields["error"] = trace
        return json.dumps(fields, ensure_ascii=False)

    def _trace(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return record.exc_text or ""


def hide(line: str, secrets: Collection[str]) -> str:
    """The line with ``***`` in place of each secret."""
    for secret in secrets:
        line = line.replace(secret, HIDDEN)
    return line


def _time(record: logging.LogRecord) -> str:
    """When the record was made, in UTC, as ISO 8601 with milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


class _OurHandler(logging.StreamHandler[Any]):
    """The handler that :func:`log_to_stderr` has added, so that another call replaces it."""


def log_to_stderr(settings: LogSettings, slot: int | str | None = None) -> None:
    """Write this package's log to standard error, each line once, also when an earlier task of the process has called
    this."""
    logger = logging.getLogger("wallaroo_spark")
    handler = _OurHandler(sys.stderr)
    handler.setFormatter(LineFormatter(settings, slot))
    logger.handlers = [*(known for known in logger.handlers if not isinstance(known, _OurHandler)), handler]
    logger.setLevel(settings.level.upper())
