"""One seed, one history of durable streams: keys, gateways, clients and batches around the pure controller.

Nothing here reads a clock, opens a socket or starts Spark. Batches are planned, run, lost and run again with the same
input, as Spark does; gateways and members die; the feed between keys is late and repeats itself. A judge follows all
committed instructions.
"""
