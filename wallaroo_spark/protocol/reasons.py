"""ERROR reasons with a meaning for the connector.

The drafts have no frame that redirects a connector to another worker, so the worker uses the reason of an ERROR. The
SDK acts on these reasons; other connectors show them to their operators. Source: ``docs/protocol.md#session-states``.
"""

from __future__ import annotations

import re

_REDIRECT = re.compile(r"redirect to (\S+): ")
_LATER = "try again later: "
_SUPERSEDED = ", takes its place"


def redirect(address: str, why: str) -> str:
    """The reason that redirects a connector to the worker at ``address`` (``host:port``)."""
    return f"redirect to {address}: {why}"


def redirect_address(reason: str) -> str | None:
    """The ``host:port`` in a redirecting reason; None for other reasons."""
    match = _REDIRECT.match(reason)
    return match[1] if match else None


def superseded(instance: str, peer: str) -> str:
    """The reason that ends a session because its instance has opened a newer one. The connector must not reconnect."""
    return f"a newer session of instance {instance!r}, from {peer}{_SUPERSEDED}"


def is_superseded(reason: str) -> bool:
    """Whether a reason says that the instance has opened a newer session."""
    return reason.endswith(_SUPERSEDED)


def later(why: str) -> str:
    """The reason that asks a connector to reconnect with its usual back-off."""
    return _LATER + why


def is_later(reason: str) -> bool:
    """Whether a reason asks the connector to reconnect."""
    return reason.startswith(_LATER)
