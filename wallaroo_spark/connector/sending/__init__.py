"""How streams send: who may send next, what is kept until it is acknowledged, and what is sent again."""
