"""``wallaroo-spark demo``: orders or files are sent, written as Parquet, and compared with the input."""
