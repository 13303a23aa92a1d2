"""How a worker keeps within its memory: credit windows, which sockets are read, and how a full buffer gets room."""
