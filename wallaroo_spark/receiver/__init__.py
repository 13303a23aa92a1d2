"""The driver's side: :class:`Receiver` runs the workers, makes their streaming DataFrame and watches the checkpoint."""

from wallaroo_spark.receiver.receiver import Receiver

__all__ = ["Receiver"]
