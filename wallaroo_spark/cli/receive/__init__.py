"""``wallaroo-spark receive``: its YAML file, the receiver and query that it runs, and its output."""
