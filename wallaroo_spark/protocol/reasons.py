"""ERROR reasons that both sides of this project understand.

The drafts have no frame that sends a connector elsewhere, so the worker says it in the reason of an ERROR; a foreign
connector shows the sentence to its operator, ours follows it. Source: ``protocol.md``, Session states.
"""

from __future__ import annotations

import re

_REDIRECT = re.compile(r"redirect to (\S+): ")
_LATER = "try again later: "


def redirect(address: str, why: str) -> str:
    """The reason that sends a connector to the worker at ``host:port``."""
    return f"redirect to {address}: {why}"


def redirect_address(reason: str) -> str | None:
    """Where a reason sends us, if it does."""
    match = _REDIRECT.match(reason)
    return match[1] if match else None


def later(why: str) -> str:
    """The reason that asks a connector to come back with its usual back-off."""
    return _LATER + why


def is_later(reason: str) -> bool:
    """Whether a reason asks us to come back."""
    return reason.startswith(_LATER)
