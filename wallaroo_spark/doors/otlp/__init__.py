"""The OTLP door: logs, metrics and traces of OpenTelemetry's exporters and Collectors, over gRPC and HTTP."""
