"""Which statuses a client tries again after, and the errors that it raises."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from wallaroo_spark.client.refusals import INTERRUPTED, MAYBE_ANSWERED, WRITTEN_ONCE, may_try_again, refusal
from wallaroo_spark.errors import PipelineError, TransportError


def failed(status: grpc.StatusCode, details: str, code: str = "") -> AioRpcError:
    return AioRpcError(status, Metadata(), Metadata(*([("wallaroo-code", code)] if code else [])), details)


def test_a_message_that_was_written_while_its_call_ended_is_a_lost_connection() -> None:
    error = failed(grpc.StatusCode.INTERNAL, INTERRUPTED)
    assert may_try_again(error)
    assert isinstance(refusal(error, "consume"), TransportError)
    assert not may_try_again(failed(grpc.StatusCode.INTERNAL, "the gateway has failed", "gateway-failed"))


@pytest.mark.parametrize(
    "text", ["SERVER: Received message larger than max (9 vs. 8)", "received metadata size exceeds hard limit"]
)
def test_a_message_that_is_too_large_for_grpc_is_not_sent_again(text: str) -> None:
    error = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    assert not may_try_again(error)
    assert isinstance(refusal(error, "publish"), PipelineError)
    assert may_try_again(failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "gateway-busy"))


def test_a_late_answer_is_repeated_for_events_and_not_for_calls() -> None:
    late = failed(grpc.StatusCode.DEADLINE_EXCEEDED, "")
    assert "which are written once" in str(refusal(late, "publish to s", WRITTEN_ONCE))
    text = str(refusal(late, "call e", MAYBE_ANSWERED))
    assert "the consumer may have done the work; call again if that may be done twice" in text
    assert "written once" not in text
    cancelled = failed(grpc.StatusCode.CANCELLED, "")
    assert "call again if that may be done twice" in str(refusal(cancelled, "call e", MAYBE_ANSWERED))
