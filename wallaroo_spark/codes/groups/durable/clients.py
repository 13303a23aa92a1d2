"""Codes of clients of durable streams and pipelines."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

CLIENTS = CodeGroup(
    "Clients of durable streams",
    "Raised by `Client`, `AsyncClient`, and the verbs `publish`, `consume`, `stage`, `call` and `serve`.",
    (
        CodeEntry(
            "gateway-unreachable",
            "No gateway of the application can be reached, or the gateway ends.",
            "The application does not run, the addresses or the registry are wrong, a firewall is between, or one side "
            "uses TLS and the other does not.",
            "Start the application; check the addresses, or the registry and the application's name, and the "
            "certificates.",
            "docs/pipelines/clients.md#connections",
        ),
        CodeEntry(
            "gateway-refused",
            "A gateway has refused a request, without a code of its own.",
            "The message has the gateway's reason.",
            "Act on the reason.",
            "docs/pipelines/clients.md#errors",
        ),
        CodeEntry(
            "request-late",
            "A request was not answered within its time.",
            "The application has not committed a batch meanwhile: it is overloaded, starts, or stands still.",
            "Publish the same events again, they are written once; raise `timeout`; look at the application.",
            "docs/pipelines/clients.md#errors",
        ),
        CodeEntry(
            "client-closed",
            "A client is used after its end, from its own thread, or in a fork of its process.",
            "`close` was called, the `with` block has ended, a function that the client calls uses it, or "
            "`multiprocessing` has forked the process after the client was made.",
            "Open another client; in a forked process, after the fork.",
            "docs/pipelines/clients.md#connections",
        ),
        CodeEntry(
            "delivery-lost",
            "The connection was lost while a delivery was open.",
            "The gateway, its machine or the network has failed; whether the ack was committed is not known.",
            "Nothing: the delivery comes again unless its ack was committed. Effects that must happen once belong in "
            "the output, in stream outputs or in a transaction.",
            "docs/pipelines/clients.md#consume",
        ),
        CodeEntry(
            "delivery-ended",
            "A delivery is used that has ended.",
            "It was acked or nacked already, or the application has withdrawn it.",
            "Ack or nack each delivery once.",
            "docs/pipelines/clients.md#consume",
        ),
        CodeEntry(
            "delivery-refused",
            "The application refuses the ack of a delivery, which counts as nacked.",
            "A required output is missing, a stream output is not declared, or a statement was rejected.",
            "Act on the reason in the message.",
            "docs/pipelines/clients.md#stages",
        ),
        CodeEntry(
            "statement-rejected",
            "A statement of a transaction is rejected, and the transaction with it.",
            "The stream is not declared, the token does not permit it, or the delivery has ended.",
            "Act on the reason in the message; the delivery comes again.",
            "docs/pipelines/clients.md#transactions",
        ),
        CodeEntry(
            "event-invalid",
            "An attribute of an event cannot be sent.",
            "A required attribute is empty, or the name or the value of an extension is not one of CloudEvents.",
            "Correct the attribute that the message names.",
            "docs/pipelines/clients.md#events",
        ),
        CodeEntry(
            "event-missing",
            "Publishing nothing is an error.",
            "`publish` was called without an event.",
            "Give at least one event.",
            "docs/pipelines/clients.md#events",
        ),
        CodeEntry(
            "events-refused",
            "Some events of `publish_many` were refused; the others are published.",
            "They are no events, are too large, or have an attribute that is not valid.",
            "Correct the events that the message names by their numbers, and publish them; `on_refused` is told of "
            "each.",
            "docs/pipelines/clients.md#publish-many",
        ),
        CodeEntry(
            "message-too-large",
            "An event or a request has more bytes than a gateway takes.",
            "An event has at most 3 MiB, a request, an ack and a statement have at most 4 MiB.",
            "Divide the request, or keep large data elsewhere and send its address.",
            "docs/pipelines/gateway.md#connecting",
        ),
        CodeEntry(
            "stage-missing",
            "There is no stage to work on.",
            "`work` or `run_stages` was called without a function.",
            "Give at least one function with `@stage(pipeline, name)`.",
            "docs/pipelines/clients.md#stages",
        ),
        CodeEntry(
            "history-elsewhere",
            "The history of instances is not on this machine.",
            "`pipelines instances` reads files of a local path, and the application's folder is a URI.",
            "Read it in Spark with `read_instances` of `wallaroo_spark.streams`.",
            "docs/pipelines/clients.md#the-command-line",
        ),
        CodeEntry(
            "answer-missing",
            "A call has ended without an answer.",
            "The server's function is a generator that yields nothing.",
            "Let it yield an answer, or use `call_stream`.",
            "docs/pipelines/clients.md#exchanges-and-endpoints",
        ),
    ),
)
