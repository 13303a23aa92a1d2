"""The names of instances that belong to a worker's own doors, in which clients of other protocols are instances.

A planned range of such an instance may be given up when nobody can send it again, so no connector may have its name.
Source: ``docs/doors.md#rows-that-nobody-can-resend``.
"""

from __future__ import annotations

DOORS = ("http/", "kafka/", "otlp/")
"""The beginnings of these names: a door, and behind the slash the name of its client."""


def reserved(instance: str) -> str:
    """The beginning of an instance's name that makes it one of a door's; empty for a connector's."""
    return next((prefix for prefix in DOORS if instance.startswith(prefix)), "")
