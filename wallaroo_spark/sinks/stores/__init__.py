"""Sinks in stores with transactions of their own: files, PostgreSQL, Kafka and Redis."""
