"""The server under generated requests."""
