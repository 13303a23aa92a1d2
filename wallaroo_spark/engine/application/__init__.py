"""The driver's part of an application of durable streams: its gateways, its query, and what follows a commit."""
