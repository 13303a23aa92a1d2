"""A test for each revision of the protocol, or for each of the drafts, as its argument ``revision``."""

from __future__ import annotations

import pytest

from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, REVISIONS

revisions = pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
drafts = pytest.mark.parametrize("revision", [DRAFT_LE, DRAFT_BE], ids=str)
