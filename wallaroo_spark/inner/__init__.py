"""Calls to a worker's inner port: the client, the certificates that it trusts, and the rows that it receives."""
