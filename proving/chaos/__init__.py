"""Kills on a real standalone cluster, and a steady run whose memory is sampled: ``python -m proving.chaos``."""
