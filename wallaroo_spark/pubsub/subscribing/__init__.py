"""The subscribers' side of a topic; Spark is not needed."""
