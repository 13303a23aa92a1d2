"""Publish-subscribe with Spark's batches as epochs: a subscriber sees an epoch whole, or not at all.

Source: ``seeds/001``.
"""

from __future__ import annotations
