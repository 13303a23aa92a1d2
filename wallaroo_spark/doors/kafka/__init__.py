"""The Kafka door: a server that takes what Kafka's producers send, and nothing else."""

PREFIX = "kafka/"
"""The beginning of the instances of this door, whose values are record batches. No connector may have such a name."""
