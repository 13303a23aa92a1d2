"""Programs that a verb runs for a delivery or a call: input as JSON on standard input, output on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

_LAST = 300
"""The most characters of a program's errors that the reason of a failure has. A choice: a line or two."""


async def run_command(command: str, given: dict[str, Any], environment: dict[str, str]) -> bytes:
    """Run a command in a shell; ``given`` is its standard input, as JSON. Returns its standard output.

    Raises RuntimeError with the end of its standard error when it fails. A cancellation ends its process group.
    """
    program = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        output, errors = await program.communicate(json.dumps(given, ensure_ascii=False).encode())
    except asyncio.CancelledError:
        if program.returncode is None:
            os.killpg(program.pid, signal.SIGTERM)
        raise
    if program.returncode:
        said = errors.decode(errors="replace").strip()[-_LAST:]
        raise RuntimeError(f"the command ended with status {program.returncode}{': ' if said else ''}{said}")
    return output


def value_of(output: bytes) -> Any:
    """The output of a program: a JSON value, or a text without its last line end, or bytes; None for nothing."""
    if not output:
        return None
    try:
        return json.loads(output)
    except ValueError:
        pass
    try:
        return output.decode().removesuffix("\n")
    except UnicodeDecodeError:
        return output


def plain(value: Any) -> Any:
    """A decoded payload as JSON has it: bytes become text, with replacements."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
