"""The gRPC interface of a gateway: the ``.proto`` files, and the code that ``./scripts/api`` makes from them."""
