"""The driver's side: :class:`Receiver` runs the workers, makes their streaming DataFrame and watches the checkpoint."""

from wallaroo_spark.extras import needed_by

with needed_by("wallaroo_spark.receiver", "spark", "embedded"):
    from wallaroo_spark.receiver.receiver import Receiver

__all__ = ["Receiver"]
