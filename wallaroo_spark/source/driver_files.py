"""Files in which a driver's receivers leave what their sources need, for sources that nobody has registered.

``spark.readStream.format("wallaroo")`` in a session in which no receiver was started has only the name of a receiver.
Its source plans in a process of its own, which Spark starts on the driver's machine as the driver's user. It finds the
registry's URL and the fleet's token in a file that only this user may read, by the driver's process id. So they stand
in no option, plan, setting or environment. Source: ``docs/decisions/any-query.md``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from wallaroo_spark.inner.client import private_folder


class DriverFiles:
    """The files of one user's drivers, in ``folder``. ``driver`` is the process id of a driver's Java."""

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder

    def write(self, driver: int, receiver: str, content: dict[str, str]) -> None:
        """Write what the sources of a receiver need, in place of what an earlier receiver of that name has left.

        Files of drivers that have ended are deleted. Raises OSError.
        """
        folder = self._folder()
        _forget_ended(folder)
        target = folder / _name(driver, receiver)
        draft = folder / f".{target.name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(draft, target)

    def read(self, receiver: str) -> dict[str, str] | None:
        """What a receiver of the driver that started this process has left; None when there is none."""
        for driver in _ancestors():
            with contextlib.suppress(OSError, ValueError):
                text = (self._folder() / _name(driver, receiver)).read_text(encoding="utf-8")
                return {str(name): str(value) for name, value in json.loads(text).items()}
        return None

    def delete(self, driver: int, receiver: str, content: dict[str, str]) -> None:
        """Delete what a receiver has left, unless another one of that name has replaced it."""
        with contextlib.suppress(OSError, ValueError):
            path = self._folder() / _name(driver, receiver)
            if json.loads(path.read_text(encoding="utf-8")) == content:
                path.unlink()

    def _folder(self) -> Path:
        """The folder, which belongs to this user. Raises OSError when another user has made it."""
        folder = self._given or private_folder() / "receivers"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def _name(driver: int, receiver: str) -> str:
    return f"{driver}-{hashlib.sha256(receiver.encode()).hexdigest()[:32]}"


def _ancestors() -> Iterator[int]:
    """The processes that may be the driver: the parent, and its parent where PySpark's daemon lies between."""
    parent = os.getppid()
    yield parent
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The name of the program may have spaces and parentheses; the parent is the second field behind it.
        yield int(Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def _forget_ended(folder: Path) -> None:
    for path in folder.iterdir():
        driver = path.name.lstrip(".").partition("-")[0]
        if driver.isdecimal() and not _runs(int(driver)):
            with contextlib.suppress(OSError):
                path.unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
