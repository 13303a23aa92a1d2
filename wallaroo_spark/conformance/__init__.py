"""Checks of a connector, a worker or a gateway that was written by others, each with the section that it rests on.

A check is a row of a table: :data:`.connectors.CHECKS`, :data:`.workers.CHECKS`, :data:`.gateways.CHECKS`. The peer's
frames are judged by the tables of :mod:`wallaroo_spark.protocol`, as :mod:`wallaroo_spark.wiretap.decoding` applies
them. Source: ``docs/conformance.md``.
"""
