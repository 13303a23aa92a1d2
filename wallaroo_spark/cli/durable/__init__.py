"""The verbs for durable streams and pipelines."""
