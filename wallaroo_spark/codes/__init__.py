"""The codes of errors, of protocol violations and of causes in a status: the table ``codes.toml``, and its search.

A code has one meaning wherever it appears. ``docs/errors.md`` is generated from the table. The file is read when a
mapping is first used.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["ENTRIES", "GROUPS", "CodeEntry", "CodeGroup", "CodesFound", "search", "titles"]

NEAREST = 5
"""The most entries that are suggested. A choice: a person reads so many at a glance."""
_ALIKE = 0.6
"""The least similarity of a misspelt code, as :mod:`difflib` measures it; the default of that module."""
_LEAST_WEIGHT = 0.1
"""The least weight of the shared words of a suggestion. A choice: two words that a dozen entries have are too few."""
_IN_BRACKETS = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)*)\]")
_QUOTED = re.compile(r"(?:fault|kind|code)[\"'=: ]+([a-z0-9]+(?:-[a-z0-9]+)*)")
_NAMES = re.compile(r"[A-Za-z0-9]+(?:-[a-z0-9]+)*")
_OF_KAFKA = re.compile(r"[A-Z]+(?:_[A-Z]+)+")
_WORDS = re.compile(r"[a-z]{4,}")

T = TypeVar("T")


@dataclass(frozen=True)
class CodeEntry:
    """A code with its explanation. Programs compare codes, so a code never changes its name or its meaning."""

    code: str
    """The code: lower-case words with dashes between them."""
    title: str
    """The state or the event that the code names: one sentence."""
    cause: str
    """How it comes about."""
    page: str
    """The page of the documentation with more about it, from the top of the repository, with its section."""
    cure: str = ""
    """The action of the person who reads it; empty for a state in which nothing has to be done."""
    also: tuple[str, ...] = ()
    """Other names of the same cause: alerts in ``conf/prometheus`` and reasons of ``/healthz``."""
    healthy: bool = False
    """Whether all works as it should in the state that it names."""
    check: str = ""
    """The part of a receiver in the answer of ``/healthz`` whose trouble it is, such as ``slots``; empty: of none."""


@dataclass(frozen=True)
class CodeGroup:
    """Codes of one subject."""

    title: str
    """The heading on the page and in the list."""
    about: str
    """One sentence on where these codes appear."""
    entries: tuple[CodeEntry, ...]
    """The codes, in the order of the page."""


@dataclass(frozen=True)
class CodesFound:
    """The answer to a search."""

    named: tuple[CodeEntry, ...] = ()
    """The entries that the text names, in the order of the text."""
    nearest: tuple[CodeEntry, ...] = ()
    """Suggestions for a text that names none, the nearest first."""


class _Lazy(Mapping[str, T]):
    """A mapping that is made on its first use."""

    def __init__(self, make: Callable[[], Mapping[str, T]]) -> None:
        self._made = functools.cache(make)

    def __getitem__(self, key: str) -> T:
        return self._made()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())


def _read() -> Mapping[str, CodeGroup]:
    """The groups of the file, in its order."""
    import tomllib  # A connector that only sends needs neither the file nor its parser.

    groups = tomllib.loads(Path(__file__).with_name("codes.toml").read_text(encoding="utf-8"))
    return {
        name: CodeGroup(
            group["title"],
            group["about"],
            tuple(
                CodeEntry(code, **{**row, "also": tuple(row.get("also", ()))}) for code, row in group["codes"].items()
            ),
        )
        for name, group in groups.items()
    }


GROUPS: Mapping[str, CodeGroup] = _Lazy(_read)
"""Name of a subject → its codes, in the order of the page."""
ENTRIES: Mapping[str, CodeEntry] = _Lazy(
    lambda: {entry.code: entry for group in GROUPS.values() for entry in group.entries}
)
"""Every code with its entry."""


def titles(group: str, *further: str) -> Mapping[str, str]:
    """The meanings of the codes of a group, and of further codes."""
    return _Lazy(
        lambda: {entry.code: entry.title for entry in (*GROUPS[group].entries, *(ENTRIES[code] for code in further))}
    )


def search(text: str) -> CodesFound:
    """Find the entries for a code or an alert's name, also within a message, or else the most similar ones."""
    by_name = _by_name()
    whole = text.strip().strip("[]").lower()
    for name in (whole, whole.replace(" ", "-")):
        if name in by_name:
            return CodesFound((by_name[name],))
    names = [*_IN_BRACKETS.findall(text), *_QUOTED.findall(text)]
    # A code of one word, such as "refused", may be an ordinary word of a sentence.
    names += [name for name in _NAMES.findall(text) if "-" in name or name.startswith("Wallaroo")]
    names += _OF_KAFKA.findall(text)
    named = tuple(dict.fromkeys(by_name[name.lower()] for name in names if name.lower() in by_name))
    if named:
        return CodesFound(named)
    alike = [by_name[name] for name in difflib.get_close_matches(whole, by_name, NEAREST, _ALIKE)]
    return CodesFound(nearest=tuple(dict.fromkeys([*alike, *_with_the_words(whole)]))[:NEAREST])


@functools.cache
def _by_name() -> Mapping[str, CodeEntry]:
    """Every code and every other name, in lower case, with its entry."""
    return {**{name.lower(): entry for entry in ENTRIES.values() for name in entry.also}, **ENTRIES}


def _with_the_words(text: str) -> list[CodeEntry]:
    """The entries that share words with a text, those with the most and the rarest of them first."""
    words = set(_WORDS.findall(text))
    words_of = {
        entry: set(_WORDS.findall(f"{entry.code} {entry.title} {entry.cause} {entry.cure}".lower()))
        for entry in ENTRIES.values()
    }
    entries_with = Counter(word for found in words_of.values() for word in found)
    weights = {entry: sum(1 / entries_with[word] for word in words & found) for entry, found in words_of.items()}
    chosen = [entry for entry, weight in weights.items() if weight >= _LEAST_WEIGHT]
    return sorted(chosen, key=lambda entry: -weights[entry])
