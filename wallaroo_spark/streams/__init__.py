"""The files of an application of durable streams: its inputs, the outputs of its batches, and its tables."""
