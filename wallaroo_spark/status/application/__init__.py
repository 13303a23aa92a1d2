"""The live state of an application of durable streams: one model for the command line, the page and the metrics.

- :mod:`.model` -- the snapshot as values; its JSON is made by :mod:`wallaroo_spark.status.schema`
- :mod:`.gauges` -- adds up the gauges of committed batches
- :mod:`.snapshot` -- a snapshot from the gauges, the schema's shapes and the reports of gateways
- :mod:`.cause` -- the reason why the application waits, as one sentence

Source: ``docs/pipelines/see.md``.
"""
