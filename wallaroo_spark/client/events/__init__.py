"""Events and payloads as programs have them."""
