"""The sizes that a gateway accepts and a client keeps to."""

MESSAGE_BYTES = 4 * 1024 * 1024
"""The most bytes of one message of a client: gRPC's own default."""
EVENT_BYTES = 3 * 1024 * 1024
"""The most bytes of one event, so that it also fits into a message with other fields."""
EVENTS = 10_000
"""The most events of one publish, ack or statement. A choice."""
GROUP_EVENTS = 2_000
"""The most events of a delivery of a group, unless its member asks for another number. A choice: an ack costs a batch
of the application, and a client has all events of a delivery in memory."""
STAGE_DELIVERIES = 100
"""The most deliveries at once of a worker, unless it asks for another number. A choice: while it is quick, more wait at
its gateway."""
