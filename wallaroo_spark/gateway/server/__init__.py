"""The gRPC server of a gateway: services, calls and channels around the pure state."""
