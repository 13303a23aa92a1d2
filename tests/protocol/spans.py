"""The spans of a run of messages, found one by one."""

from __future__ import annotations

from wallaroo_spark.protocol import StreamSpan


def spans(messages: list[tuple[int, bool, bool]]) -> list[StreamSpan]:
    """The spans of a run given as (stream id, has EOS, is ephemeral)."""
    found: dict[int, StreamSpan] = {}
    for index, (stream_id, eos, ephemeral) in enumerate(messages):
        span = found.get(stream_id) or StreamSpan(stream_id, first=index)
        if span.eos is not None and span.after_eos is None:
            span = span._replace(after_eos=index)
        if eos and span.eos is None:
            span = span._replace(eos=index)
        if ephemeral and span.first_ephemeral is None:
            span = span._replace(first_ephemeral=index)
        if not ephemeral and span.first_lasting is None:
            span = span._replace(first_lasting=index)
        found[stream_id] = span
    return list(found.values())
