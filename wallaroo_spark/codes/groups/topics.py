"""Codes of topics, publishers and subscriptions."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

TOPICS = CodeGroup(
    "Topics and subscriptions",
    "Raised by `publish`, `Topic`, `subscribe`, and sources that read a topic.",
    (
        CodeEntry(
            "topic-not-found",
            "No topic of this name is there.",
            "It was not started, has ended, or is registered in another Redis.",
            "Start it with `Topic(spark, NAME, …)`, check the name and the registry, or let the subscription wait "
            "for it.",
            "docs/pubsub.md",
        ),
        CodeEntry(
            "topic-started-anew",
            "The topic was started anew, and what was known about it belongs to its earlier history.",
            "Its checkpoint was created anew, so its epochs count from the beginning again.",
            "Subscribe without a position; start the topic anew after its query's checkpoint was created anew.",
            "docs/pubsub.md#following-a-topic",
        ),
        CodeEntry(
            "epochs-not-kept",
            "The epochs to continue with are no longer kept.",
            "A topic keeps the rows of a limited number of batches, and this subscriber was away, or was slow, for "
            "longer.",
            "Subscribe without a position; let the topic retain more batches.",
            "docs/pubsub.md#settings-of-a-topic",
        ),
        CodeEntry(
            "subscriber-refused",
            "The publisher of a topic refuses this subscriber, or has ended its session.",
            "The cookie, the version or the position is not acceptable, the topic has ended, or the subscriber reads "
            "too slowly. The message has the reason.",
            "Act on the reason. A subscriber that is too slow has to process faster, or in a process of its own.",
            "docs/pubsub.md#on-the-wire",
        ),
        CodeEntry(
            "partition-lost",
            "A partition of a topic has made no progress for longer than `lost_after`.",
            "Its publisher cannot be reached, and no successor has come. The message has the reasons of all attempts.",
            "Check that the publishing query runs and that its publishers' addresses are reachable from here, or raise "
            "`lost_after`.",
            "docs/pubsub.md#following-a-topic",
        ),
        CodeEntry(
            "subscription-misused",
            "A subscription is used in a way that it does not support.",
            "It is closed, is iterated in two ways at the same time, or `epochs()` is used with `atomic=False`.",
            "Subscribe anew, and use one way to iterate.",
            "docs/pubsub.md#following-a-topic",
        ),
        CodeEntry(
            "epoch-invalid",
            "A value is not a time of this topic.",
            "A time is an integer of 64 bits, or a tuple of them that begins with the batch. All times of a topic "
            "have the same shape, and an epoch column has integers from 0 without nulls.",
            "Give all epochs in one shape; cast or fill the epoch column.",
            "docs/pubsub.md#times",
        ),
        CodeEntry(
            "batch-published-already",
            "This batch was published on the topic already.",
            "`publish` is called twice for one batch, or outside the `foreachBatch` of the query that has the "
            "checkpoint.",
            "Publish a batch once, as the union of its DataFrames, in that query's `foreachBatch`.",
            "docs/pubsub.md",
        ),
        CodeEntry(
            "batch-unknown",
            "Spark does not report which batch runs.",
            "`publish` is called outside `foreachBatch`, or in another thread.",
            "Call it inside `foreachBatch`, or pass the batch id: `publish(df, topic, epoch=batch_id)`.",
            "docs/pubsub.md",
        ),
        CodeEntry(
            "topic-columns",
            "The columns of a batch differ from those of the topic.",
            "Subscribers rely on one schema, which the first batch has set.",
            "Select the same columns in every batch, or publish on another topic.",
            "docs/pubsub.md#what-is-promised",
        ),
        CodeEntry(
            "too-many-messages",
            "A batch of the topic has more messages than references can count.",
            "The reference of a message is the batch and its place in the batch, 32 bits each.",
            "Send rows as Arrow (`value='arrow'`), or begin a new checkpoint.",
            "docs/pubsub.md#one-spark-application-feeds-another",
        ),
        CodeEntry(
            "row-too-long",
            "A row, a record or a message is longer than the receiving side accepts.",
            "The limit is the store's or the protocol's own; the message has both numbers.",
            "Write smaller rows, split the batch, or raise the limit where it is a setting.",
            "docs/pubsub.md#on-the-wire",
        ),
    ),
)
