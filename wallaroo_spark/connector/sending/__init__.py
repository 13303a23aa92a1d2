"""Sending: the turns of streams, the messages kept until they are acknowledged, and resending."""
