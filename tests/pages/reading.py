"""A page's code blocks, and a reader who runs the Python ones in order, with the names that those before have set."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

LEFT_OUT = re.compile(r"^\*Not run by a test: .+\*$")
"""The line in a page, just above a block, that says why the block cannot run in a test."""
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w ]*)$")


@dataclass(frozen=True)
class Block:
    """A code block: the page, the number of its first line there, its language, and its text."""

    page: str
    line: int
    language: str
    text: str
    left_out: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """The pages for readers."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, from the top."""
    name = str(page.relative_to(ROOT))
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        end = next(number for number in range(at + 1, len(lines)) if lines[number].strip() == "```")
        indent = len(fence["indent"])
        text = "\n".join(line[indent:] for line in lines[at + 1 : end])
        above = next((line for line in reversed(lines[:at]) if line.strip()), "")
        yield Block(name, at + 2, fence["language"].strip(), text, bool(LEFT_OUT.match(above)))
        at = end + 1


def python_blocks(page: Path) -> list[Block]:
    """The Python blocks of a page that are to run."""
    return [block for block in blocks_of(page) if block.language == "python" and not block.left_out]


class Reader:
    """Runs a page's Python blocks one after the other.

    ``places`` are texts of the page and what stands for them here: hosts, ports and folders, which are other ones at
    every reader's. ``names`` are what the page expects its reader to have, such as ``spark``.
    """

    def __init__(self, page: str, places: Mapping[str, str] | None = None, **names: Any) -> None:
        self._blocks = python_blocks(ROOT / page)
        self.places = dict(places or {})
        self._unused = set(self.places)
        self.names: dict[str, Any] = {"__name__": "__main__", **names}

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def run(self) -> None:
        """Run the next block to its end; in an event loop of its own where it awaits something."""
        block = self._blocks.pop(0)
        text = block.text
        self._unused -= {place for place in self.places if place in text}
        # All at once: a port that stands here for a place may have the digits of another place.
        for_here = re.compile("|".join(re.escape(place) for place in self.places) or "(?!)")
        text = for_here.sub(lambda found: self.places[found[0]], text)
        # Line numbers of errors are those of the page.
        text = "\n" * (block.line - 1) + text
        code = compile(text, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self.names))
        else:
            exec(code, self.names)

    def begin(self) -> Future[None]:
        """Run the next block in a thread: one that goes on until something ends it."""
        done: Future[None] = Future()

        def work() -> None:
            try:
                self.run()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=work, name="reader", daemon=True).start()
        return done

    def finish(self) -> None:
        """The page has no more blocks, and every place was found in one."""
        assert [str(block) for block in self._blocks] == []
        assert self._unused == set()
