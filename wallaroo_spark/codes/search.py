"""The codes that a text names: a code, a pasted message, or the name of an alert."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass

from wallaroo_spark.codes.entry import CodeEntry
from wallaroo_spark.codes.table import ENTRIES

NEAREST = 5
"""The most entries that are suggested. A choice: a person reads so many at a glance."""
_ALIKE = 0.6
"""The least similarity of a misspelt code, as :mod:`difflib` measures it; the default of that module."""
_LEAST_WEIGHT = 0.1
"""The least weight of the shared words of a suggestion. A choice: two words that a dozen entries have are too few."""
_IN_BRACKETS = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)*)\]")
_QUOTED = re.compile(r"(?:fault|kind|code)[\"'=: ]+([a-z0-9]+(?:-[a-z0-9]+)*)")
_NAMES = re.compile(r"[A-Za-z0-9]+(?:-[a-z0-9]+)*")
_WORDS = re.compile(r"[a-z]{4,}")


@dataclass(frozen=True)
class CodesFound:
    """The answer to a search."""

    named: tuple[CodeEntry, ...] = ()
    """The entries that the text names, in the order of the text."""
    nearest: tuple[CodeEntry, ...] = ()
    """Suggestions for a text that names none, the nearest first."""


def search(text: str) -> CodesFound:
    """Find the entries for a code or an alert's name, also within a message, or else the most similar ones."""
    whole = text.strip().strip("[]").lower()
    for name in (whole, whole.replace(" ", "-")):
        if name in _BY_NAME:
            return CodesFound((_BY_NAME[name],))
    names = [*_IN_BRACKETS.findall(text), *_QUOTED.findall(text)]
    # A code of one word, such as "refused", may be an ordinary word of a sentence.
    names += [name for name in _NAMES.findall(text) if "-" in name or name.startswith("Wallaroo")]
    named = tuple(dict.fromkeys(_BY_NAME[name.lower()] for name in names if name.lower() in _BY_NAME))
    if named:
        return CodesFound(named)
    alike = [_BY_NAME[name] for name in difflib.get_close_matches(whole, _BY_NAME, NEAREST, _ALIKE)]
    return CodesFound(nearest=tuple(dict.fromkeys([*alike, *_with_the_words(whole)]))[:NEAREST])


def _with_the_words(text: str) -> list[CodeEntry]:
    """The entries that share words with a text, those with the most and the rarest of them first."""
    words = set(_WORDS.findall(text))
    weights = {code: sum(1 / _ENTRIES_WITH[word] for word in words & found) for code, found in _WORDS_OF.items()}
    chosen = [code for code, weight in weights.items() if weight >= _LEAST_WEIGHT]
    return [ENTRIES[code] for code in sorted(chosen, key=lambda code: -weights[code])]


_BY_NAME = {
    **{name.lower(): entry for entry in ENTRIES.values() for name in entry.also},
    **ENTRIES,
}
"""Every code and every other name, in lower case, with its entry."""
_WORDS_OF = {
    code: set(_WORDS.findall(f"{code} {entry.title} {entry.cause} {entry.cure}".lower()))
    for code, entry in ENTRIES.items()
}
"""Code → the words of its explanation."""
_ENTRIES_WITH = Counter(word for words in _WORDS_OF.values() for word in words)
"""Word → the number of entries that have it. A rare word says more than a common one."""
