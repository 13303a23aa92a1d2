"""The door for connectors: sessions of the connector protocol whose messages are published. Pure, without sockets."""
