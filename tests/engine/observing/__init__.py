"""What an application shows of itself."""
