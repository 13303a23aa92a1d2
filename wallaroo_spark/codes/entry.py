"""One code of the table, and a group of codes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CodeEntry:
    """A code with its explanation. Programs compare codes, so a code never changes its name or its meaning."""

    code: str
    """The code: lower-case words with dashes between them."""
    title: str
    """The state or the event that the code names: one sentence."""
    cause: str
    """How it comes about."""
    cure: str
    """The action of the person who reads it; empty for a state in which nothing has to be done."""
    page: str
    """The page of the documentation with more about it, from the top of the repository, with its section."""
    also: tuple[str, ...] = ()
    """Other names of the same cause: alerts in ``conf/prometheus`` and reasons of ``/healthz``."""


@dataclass(frozen=True)
class CodeGroup:
    """Codes of one subject."""

    title: str
    """The heading on the page and in the list."""
    about: str
    """One sentence on where these codes appear."""
    entries: tuple[CodeEntry, ...]
    """The codes, in the order of the page."""
