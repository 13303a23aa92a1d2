"""ERROR reasons that both sides of this project understand.

The drafts have no frame that sends a connector to another worker, so the worker does it by the reason of an ERROR. A
connector that does not know these reasons shows them to its operator; the SDK acts on them. Source:
``docs/protocol.md#session-states``.
"""

from __future__ import annotations

import re

_REDIRECT = re.compile(r"redirect to (\S+): ")
_LATER = "try again later: "
_SUPERSEDED = ", takes its place"


def redirect(address: str, why: str) -> str:
    """The reason that sends a connector to the worker at ``host:port``."""
    return f"redirect to {address}: {why}"


def redirect_address(reason: str) -> str | None:
    """Where a reason sends us, if it does."""
    match = _REDIRECT.match(reason)
    return match[1] if match else None


def superseded(instance: str, peer: str) -> str:
    """The reason that ends a session when its instance has a newer one; the connector must not come back by itself."""
    return f"a newer session of instance {instance!r}, from {peer}{_SUPERSEDED}"


def is_superseded(reason: str) -> bool:
    """Whether a reason says that another session has our place."""
    return reason.endswith(_SUPERSEDED)


def later(why: str) -> str:
    """The reason that asks a connector to come back with its usual back-off."""
    return _LATER + why


def is_later(reason: str) -> bool:
    """Whether a reason asks us to come back."""
    return reason.startswith(_LATER)
