"""Keeps a worker within its memory: credit windows, sockets that are not read, and shedding when the buffer is full."""
