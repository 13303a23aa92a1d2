"""Sources of records: files, standard input, and any iterable that can be made again."""

from wallaroo_spark.connector.sources.files import Framed, Lines
from wallaroo_spark.connector.sources.records import Records, Source, Stdin
from wallaroo_spark.connector.sources.rotated import RotatedFramed, RotatedLines

__all__ = ["Framed", "Lines", "Records", "RotatedFramed", "RotatedLines", "Source", "Stdin"]
