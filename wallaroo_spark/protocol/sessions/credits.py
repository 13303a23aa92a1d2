"""The credit window of one session, as one pure object.

Source: ``docs/protocol.md#credits``.
"""

from __future__ import annotations

from wallaroo_spark.errors import LocalProtocolError

CREDIT_LIMIT = 2**32 - 1


class CreditWindow:
    """How many frames the connector may still send.

    A NOTIFY may take the window below zero; the debt is made good by the next grants. A MESSAGE may not.
    """

    def __init__(self) -> None:
        self.available = 0
        self.granted = 0
        self.spent = 0

    def __repr__(self) -> str:
        return f"CreditWindow(available={self.available}, granted={self.granted}, spent={self.spent})"

    def grant(self, credits: int) -> None:
        """Add credits that an OK, ACK or NACK carries; 0 to 2^32-1."""
        if not 0 <= credits <= CREDIT_LIMIT:
            raise LocalProtocolError(f"a grant of {credits} credits does not fit a frame; it is 0 to {CREDIT_LIMIT}")
        self.available += credits
        self.granted += credits

    def spend(self, messages: int) -> int:
        """Charge as many of these messages as there are credits for, and say how many those were."""
        covered = max(0, min(messages, self.available))
        self.available -= covered
        self.spent += covered
        return covered

    def overdraw(self) -> None:
        """Charge one NOTIFY, into debt if need be."""
        self.available -= 1
        self.spent += 1
