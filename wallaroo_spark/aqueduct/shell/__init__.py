"""The machine of a connection on aioquic: sockets and clocks are here."""
