"""The credit window of one session.

Source: ``docs/protocol.md#credits``.
"""

from __future__ import annotations

from wallaroo_spark.errors import LocalProtocolError

CREDIT_LIMIT = 2**32 - 1
"""Greatest number of credits in one frame (u32)."""


class CreditWindow:
    """The number of frames that the connector may still send.

    A NOTIFY may make the number negative; later grants pay the debt. A MESSAGE may not.
    """

    def __init__(self) -> None:
        self.available = 0
        self.granted = 0
        self.spent = 0

    def __repr__(self) -> str:
        return f"CreditWindow(available={self.available}, granted={self.granted}, spent={self.spent})"

    def grant(self, credits: int) -> None:
        """Add the credits of an OK, ACK or NACK, from 0 to 2^32-1."""
        if not 0 <= credits <= CREDIT_LIMIT:
            raise LocalProtocolError(
                f"a grant of {credits} credits does not fit a frame; it is 0 to {CREDIT_LIMIT}",
                code="value-does-not-fit",
            )
        self.available += credits
        self.granted += credits

    def spend(self, messages: int) -> int:
        """Charge ``messages``, at most as many as there are credits. Returns the number that was charged."""
        covered = max(0, min(messages, self.available))
        self.available -= covered
        self.spent += covered
        return covered

    def overdraw(self) -> None:
        """Charge one NOTIFY; the number of credits may become negative."""
        self.available -= 1
        self.spent += 1
