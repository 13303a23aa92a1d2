"""The sizes that a gateway accepts and a client keeps to."""

MESSAGE_BYTES = 4 * 1024 * 1024
"""The most bytes of one message of a client: gRPC's own default."""
EVENT_BYTES = 3 * 1024 * 1024
"""The most bytes of one event, so that it also fits into a message with other fields."""
EVENTS = 10_000
"""The most events of one publish, ack or statement. A choice."""
