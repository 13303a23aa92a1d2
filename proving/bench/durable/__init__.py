"""The section on durable streams and pipelines."""
