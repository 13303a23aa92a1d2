"""The files that this package keeps beside a checkpoint, under ``_wallaroo``, and the durable writer for them."""
