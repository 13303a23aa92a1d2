"""The driver's façade: the fleet of workers, the stream they feed, and the watcher that has them acknowledge."""

from wallaroo_spark.receiver.receiver import Receiver

__all__ = ["Receiver"]
