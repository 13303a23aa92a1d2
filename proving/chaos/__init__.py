"""Real deaths on a real standalone cluster, and a steady run whose memory is watched: ``python -m proving.chaos``."""
