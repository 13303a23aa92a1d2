"""A random application in real Spark: its schema changes, its parts are killed, and it is judged."""
