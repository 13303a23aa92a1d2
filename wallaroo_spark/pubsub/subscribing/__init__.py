"""The subscribers' side of a topic; it does not need Spark."""
