"""Requests in flight: which part of the gateway an answer of the controller is for. Pure."""

from __future__ import annotations

from typing import Protocol

from wallaroo_spark.pipelines.controller.messages.events import Event
from wallaroo_spark.pipelines.controller.messages.instructions import AnswerRequest, RefuseRequest, WarnClient
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey, ReplyTo

ToInbox = tuple[PartitionKey, Event]
"""An event for the controller of a key."""
Answer = AnswerRequest | RefuseRequest | WarnClient


def reason_of(answer: Answer) -> str:
    """Why a controller refuses or drops a message; empty when it does not."""
    match answer:
        case RefuseRequest():
            return answer.reason
        case WarnClient():
            return answer.text
    return ""


class Asker(Protocol):
    """A part of the gateway that has asked a controller."""

    def answered(self, request: int, answer: Answer) -> list[ToInbox]:
        """Take the answer to one request. Returns further events."""


class RequestsInFlight:
    """The requests of one gateway that wait for an answer."""

    def __init__(self, gateway: str, generation: int) -> None:
        self.gateway = gateway
        self.generation = generation
        self._askers: dict[int, Asker] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._askers)

    def open(self, asker: Asker) -> ReplyTo:
        """Number a new request."""
        self._last += 1
        self._askers[self._last] = asker
        return ReplyTo(self.gateway, self.generation, self._last)

    def unanswered(self) -> ReplyTo:
        """The request of a message whose answer nobody reads."""
        return ReplyTo(self.gateway, self.generation, 0)

    def forget(self, request: int) -> None:
        """Nobody waits for the answer any more."""
        self._askers.pop(request, None)

    def answered(self, answer: Answer) -> list[ToInbox]:
        """Pass an answer on; one to an unknown request, or to an earlier generation, is dropped."""
        reply = answer.reply_to
        if (reply.gateway, reply.generation) != (self.gateway, self.generation):
            return []
        asker = self._askers.pop(reply.request, None)
        return asker.answered(reply.request, answer) if asker is not None else []
