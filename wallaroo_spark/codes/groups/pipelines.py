"""Codes of an application's schema and of its tokens."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

PIPELINES = CodeGroup(
    "Schema of an application",
    "Raised by `wallaroo-spark apply`, `get`, `describe`, `delete` and `token`, and by the functions behind them.",
    (
        CodeEntry(
            "schema-invalid",
            "Documents or an object of an application's schema have problems, and nothing was applied.",
            "A kind or a field is misspelt, a value is outside its limits, an object names another one that is not "
            "declared, stages wait for each other in a cycle, or a living object cannot take the change.",
            "Correct each line that the message names; it has the way out.",
            "docs/pipelines/schema.md#apply",
        ),
        CodeEntry(
            "schema-changed-meanwhile",
            "Another process changed the schema while this one checked its documents.",
            "Two processes applied documents at the same time, and one of them wins.",
            "Run the command again; it checks the documents against the new version.",
            "docs/pipelines/schema.md#apply",
        ),
        CodeEntry(
            "schema-unreadable",
            "A stored version of the schema, or a stored token, is not as this version writes it, or is not there.",
            "A newer version of wallaroo-spark wrote it, or the file was changed by hand or damaged.",
            "Use the version of wallaroo-spark that wrote it, or restore the file.",
            "docs/pipelines/schema.md#the-folder-of-an-application",
        ),
    ),
)
