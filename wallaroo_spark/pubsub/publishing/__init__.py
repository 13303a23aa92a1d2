"""The publishers' side of a topic: the code that runs in Spark, and the files beside the checkpoint."""
