"""The Spark side: ``spark.readStream.format("wallaroo")``, its offsets, and how a batch is planned and read."""

from wallaroo_spark.source.datasource import Secrets, WallarooDataSource, forget, load, register
