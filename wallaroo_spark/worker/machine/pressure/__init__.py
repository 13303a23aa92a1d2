"""How a worker keeps within its memory: credit windows, which sockets are read, and what makes room when it is full."""
