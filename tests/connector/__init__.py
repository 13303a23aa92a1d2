"""Tests of the connector."""
