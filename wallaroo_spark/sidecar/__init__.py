"""Files that this package keeps beside a checkpoint, under ``_wallaroo``, and the one durable writer for them."""
