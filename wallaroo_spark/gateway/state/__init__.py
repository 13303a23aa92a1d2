"""The decisions of a gateway, without sockets, clocks and files: requests, members, exchanges, endpoints, access."""
