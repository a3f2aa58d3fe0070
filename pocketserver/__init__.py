"""A small model server for the local network, and a device simulator for people who write its clients."""

__version__ = "0.1.0"
