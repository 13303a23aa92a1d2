"""The bytes of Aqueduct: pure functions. Source: ``docs/aqueduct.md``."""
