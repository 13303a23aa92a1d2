"""The Kafka door: a server that takes what Kafka's producers send, and nothing else."""
