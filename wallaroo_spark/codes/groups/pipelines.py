"""Codes of an application's schema, of its tokens and of its gateways."""

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
GATEWAYS = CodeGroup(
    "Gateways of an application",
    "In the trailing metadata `wallaroo-code` of calls to a gateway, and in the problems of its messages.",
    (
        CodeEntry(
            "object-unknown",
            "A call names an object that the schema does not have.",
            "The name is misspelt or has no namespace, or the schema that declares the object is not applied yet.",
            "Name the object as namespace/name, and apply its schema; gateways follow the schema within seconds.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "request-invalid",
            "A message of a client is not valid at any time.",
            "A required field is missing, a value is above a limit or out of place, or an event is not valid "
            "CloudEvents 1.0.",
            "Correct the program; the text names the field, the value and the limit. To send the same message "
            "again is of no use.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "gateway-busy",
            "A gateway has reached a limit: events that wait for the inbox, calls, members, or bytes that wait "
            "for a member.",
            "Clients send more than the application commits, or a member does not read its deliveries.",
            "Try again later or with another gateway; run more gateways, or look why batches take long.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "gateway-ends",
            "A gateway ends, or is started again.",
            "The application stops, its executor is lost, or another process has the gateway's lease.",
            "Connect again, to another gateway too. Publish again: known events are recognized.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "gateway-failed",
            "A gateway failed at a call by an unexpected error.",
            "A file cannot be read, or the program has a defect.",
            "Look at the log of the gateway's executor; report a defect.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "token-refused",
            "A call has no valid token.",
            "It has none, or one that is unknown, expired or revoked.",
            "Create a token with wallaroo-spark token create, and send it as the metadata authorization: Bearer TOKEN.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "permission-missing",
            "The token of a call does not permit this access to this object.",
            "The Token in the schema has no permission for it.",
            "Add the permission to the Token and apply the schema; known tokens have it within seconds.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "request-refused",
            "The controller of a partition refuses a request.",
            "The state does not permit it, such as cancelling an instance that has ended.",
            "The text has the reason.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "publish-refused",
            "A partition refuses the events of a publish.",
            "The stream was deleted, or the engine has not seen its newest declaration yet.",
            "Send the same request again: events that are there already are recognized.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "join-refused",
            "A client cannot join a group or a stage.",
            "The group is of the other kind (durable or ephemeral), or the stage runs inside Spark.",
            "The text has the reason and the way out.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "subscription-ended",
            "The channel of a member ends, because its stream or its stage is gone.",
            "A new version of the schema no longer has it.",
            "Declare it again, or end the program.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "delivery-not-open",
            "An ack or a nack is dropped, because the delivery is no longer this member's.",
            "It was withdrawn or delivered again, for example because the gateway was lost meanwhile.",
            "Nothing has to be done: the delivery is or was given to a member again.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "commit-timeout",
            "A request was not committed within the time that a gateway waits.",
            "The query of the application has stopped or is behind.",
            "Look at the query, then send the same request again: known events are recognized.",
            "docs/pipelines/gateway.md#errors",
        ),
        CodeEntry(
            "no-consumer",
            "An endpoint has no consumer now.",
            "No program serves it, or its gateway is not reached any more.",
            "Start a program that serves the endpoint, and call again.",
            "docs/pipelines/gateway.md#exchanges-and-endpoints",
        ),
        CodeEntry(
            "consumer-gone",
            "The consumer of a call has gone before its answer was complete.",
            "Its program or its connection has ended. It may have done the work.",
            "Call again if the work may be done twice.",
            "docs/pipelines/gateway.md#exchanges-and-endpoints",
        ),
        CodeEntry(
            "call-failed",
            "The consumer of an endpoint reports that a call has failed.",
            "An error in the consumer's program; the text is its own.",
            "Look at the consumer.",
            "docs/pipelines/gateway.md#exchanges-and-endpoints",
        ),
        CodeEntry(
            "token-unknown",
            "There is no token of this identifier, or it exists already.",
            "The identifier is misspelt, or the token was made for another application.",
            "List the tokens with wallaroo-spark token list, and give the identifier of one.",
            "docs/pipelines/gateway.md#tokens",
        ),
    ),
)
