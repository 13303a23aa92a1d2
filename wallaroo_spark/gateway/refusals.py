"""A request that a gateway refuses: the status of gRPC, the code for the trailing metadata, and the text."""

from __future__ import annotations

from wallaroo_spark.errors import PipelineError


class Refused(PipelineError):
    """A request is refused, or a channel ends. The field ``status`` is the name of a status of gRPC."""

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        return str(self.fields["status"])


def invalid(text: str) -> Refused:
    """The request itself is not valid, at any time."""
    return Refused(text, code="request-invalid", status="INVALID_ARGUMENT")


def unknown(kind: str, name: str) -> Refused:
    """The named object is not declared."""
    return Refused(
        f"there is no {kind} {name[:200]!r}; apply a schema that declares it, and name it as namespace/name",
        code="object-unknown",
        status="NOT_FOUND",
    )


def busy(text: str) -> Refused:
    """A limit is reached; the same request may succeed later."""
    return Refused(text, code="gateway-busy", status="RESOURCE_EXHAUSTED")


def ends(reason: str) -> Refused:
    """The gateway ends."""
    return Refused(f"the gateway ends: {reason}; try again", code="gateway-ends", status="UNAVAILABLE")


def ended(reason: str) -> Refused:
    """A channel ends, because its object is gone."""
    return Refused(reason, code="subscription-ended", status="FAILED_PRECONDITION")
