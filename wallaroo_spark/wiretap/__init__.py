"""Tools on the wire: a proxy that records and disturbs connections, and the readers of recorded frames.

:class:`~.proxy.Proxy` stands between a connector and a worker; :class:`~.recording.Recorder` writes the bytes that pass
to a file, and :func:`~.recording.read` reads it. Nothing here needs Spark or pyarrow. Source:
``docs/debug-a-connector.md``.
"""
