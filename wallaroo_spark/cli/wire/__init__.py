"""The verbs for people on the wire: ``capture``, ``decode`` and ``replay``."""
