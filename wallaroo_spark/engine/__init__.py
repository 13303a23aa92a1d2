"""The engine of an application: its source, the operator of its keys, and the application in the driver."""
