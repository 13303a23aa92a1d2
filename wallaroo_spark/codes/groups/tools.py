"""Codes of captures, the proxy and the helpers for tests."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

TOOLS = CodeGroup(
    "Captures and helpers for tests",
    "Raised by `capture`, `decode`, `replay`, and `wallaroo_spark.testing`.",
    (
        CodeEntry(
            "capture-invalid",
            "The input is not a capture, or cannot be read as frames.",
            "It is a file of another kind or of another version, or bytes without a HELLO whose revision is not named.",
            "Make a capture with `wallaroo-spark capture`; name the revision of plain bytes with `--revision`.",
            "docs/debug-a-connector.md#the-file",
        ),
        CodeEntry(
            "capture-needs-tls",
            "The connector speaks TLS to the proxy, and the proxy has no certificate.",
            "Encrypted bytes could not be decoded later, so they are not recorded.",
            "Give the proxy a certificate (`--tls-certificate`, `--tls-key`), or let the connector speak without TLS.",
            "docs/debug-a-connector.md#record-it",
        ),
        CodeEntry(
            "replay-ambiguous",
            "A capture has one instance in two revisions of the protocol.",
            "It has several connections, and one replay speaks one revision for each instance.",
            "Replay one connection at a time with `--connection`.",
            "docs/debug-a-connector.md#send-it-again",
        ),
        CodeEntry(
            "test-timed-out",
            "A helper for tests has waited for messages or for its server in vain.",
            "The program under test has not sent them; the message has what was there in the end.",
            "Look at the connector's log, or give the helper more time.",
            "docs/testing.md",
        ),
    ),
)
