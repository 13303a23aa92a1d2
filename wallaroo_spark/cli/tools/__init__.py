"""Tools for authors of connectors: ``dev``, ``capture``, ``decode``, ``replay`` and ``conformance``; and ``demo``."""
