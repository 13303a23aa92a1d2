"""The stored entries of a key as the shell gives them, and their changes."""

from __future__ import annotations

from collections.abc import Mapping

Stored = Mapping[bytes, bytes]
"""The stored entries of a key. Only ``get`` is called for each batch; iteration is for rare events."""
Changes = dict[bytes, bytes | None]
"""The entries that a batch has changed; None for a removed one."""
