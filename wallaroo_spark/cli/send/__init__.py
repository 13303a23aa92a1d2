"""``wallaroo-spark send``: its inputs, the connector that sends them, and its display."""
