"""Channels over QUIC, whose messages may carry the ends of further channels. Source: ``docs/aqueduct.md``."""
