"""``wallaroo-spark demo``: the whole product on one machine, from orders or your files to Parquet and back."""

from wallaroo_spark.cli.demo.command import demo

__all__ = ["demo"]
