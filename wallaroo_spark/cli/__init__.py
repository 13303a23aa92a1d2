"""The command line, with one file for each verb. It may import every room, and no room imports it."""
