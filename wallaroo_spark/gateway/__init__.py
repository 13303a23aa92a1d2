"""The gateways of an application of durable streams: gRPC in long jobs. Source: ``docs/pipelines/gateway.md``."""
