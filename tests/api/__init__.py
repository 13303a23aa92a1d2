"""Tests of the gRPC interface."""
