"""Networks that this machine makes for itself."""
