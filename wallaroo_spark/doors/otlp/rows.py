"""Rows of OTLP clients: their instances without the worker. Source: ``docs/doors/opentelemetry.md``."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

PREFIX = "otlp/"
_OF_A_WORKER = r"^(otlp/.*)/worker-\d+$"


def named_by_service(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with ``otlp/SERVICE`` in place of the instance ``otlp/SERVICE/worker-SLOT``, which a session has."""
    instances = rows["instance"]
    if not pc.any(pc.starts_with(instances, PREFIX)).as_py():
        return rows
    named = pc.replace_substring_regex(instances, _OF_A_WORKER, r"\1")
    return rows.set_column(rows.schema.get_field_index("instance"), rows.schema.field("instance"), named)
