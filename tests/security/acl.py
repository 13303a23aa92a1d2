"""The users of ``docs/security.md``, made in a real Redis."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import redis

from tests.conftest import ROOT

DOCUMENTED = {"orders": "orders", "topic:totals": "topic:totals"}


def users(url: str, names: Mapping[str, str] = DOCUMENTED, *, also: str = "") -> dict[str, str]:
    """The URL of each documented user, by name; ``names`` are put in place of the page's receiver and topic."""
    given = urlsplit(url)
    found = {}
    with redis.Redis.from_url(url.replace("+cluster", "")) as client:
        for line in (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines():
            if line.startswith("ACL SETUSER "):
                rule = line
                for documented, name in names.items():
                    rule = rule.replace(f"{{{documented}}}", f"{{{name}}}")
                _, _, user, *rules = rule.split()
                password = f"pass-of-{user}"
                client.execute_command("ACL", "SETUSER", user, "reset", "on", f">{password}", *rules, *also.split())
                found[user] = f"{given.scheme}://{user}:{password}@{given.hostname}:{given.port}/0"
    return found
