"""Channels over QUIC beside TCP."""
