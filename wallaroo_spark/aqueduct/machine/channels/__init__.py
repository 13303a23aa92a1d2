"""The two halves of a channel, and what the halves of a connection share."""
