"""The uncommitted rows of a worker, by stream."""
