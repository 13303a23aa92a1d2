"""What the build fills into the package's metadata: its links, all made from the one address in ``pyproject.toml``."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PLACES = {"Homepage": "", "Documentation": "docs/", "Changelog": "CHANGELOG.md", "Source": "source/"}
"""The name of a link, and where it is below the address."""


class Links(MetadataHookInterface):
    """Gives the package its links; none while it has no address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling."""
        address = str(self.config["address"])
        if address and not address.startswith("https://"):
            raise ValueError(f"address in pyproject.toml is {address!r}, and begins with https:// or is empty")
        base = address.rstrip("/") + "/"
        metadata["urls"] = {name: base + place for name, place in PLACES.items()} if address else {}
