"""The server of ``wallaroo-spark sink``: it takes rows over protocol v3 with the roles reversed, and keeps files."""
