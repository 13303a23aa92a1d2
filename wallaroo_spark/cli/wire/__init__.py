"""The verbs for tools on the wire: ``capture``, ``decode`` and ``replay``."""
