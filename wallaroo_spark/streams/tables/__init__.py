"""The tables of streams and the history of instances, as Parquet files that any reader of Spark understands."""
