"""The publishers' side of a topic: what runs in Spark, and the files beside the checkpoint."""
