"""One seed, one history: connectors, workers, registry, driver and query around the product's pure parts.

Nothing here reads a clock, opens a socket or starts a thread. Time, the network and every fault are drawn from
``random.Random(seed)``, so that a history that breaks a promise can be told again, line by line.
"""
