"""What a connector tells its program: deliveries, acknowledgements, its status, and long waits."""
