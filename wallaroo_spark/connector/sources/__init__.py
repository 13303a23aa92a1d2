"""Sources of records: files, standard input, and any iterable that can be made again."""

from wallaroo_spark.connector.sources.files import Framed, Lines
from wallaroo_spark.connector.sources.records import Records
from wallaroo_spark.connector.sources.rotated import RotatedFramed, RotatedLines
from wallaroo_spark.connector.sources.source import Source
from wallaroo_spark.connector.sources.stdin import Stdin

__all__ = ["Framed", "Lines", "Records", "RotatedFramed", "RotatedLines", "Source", "Stdin"]
