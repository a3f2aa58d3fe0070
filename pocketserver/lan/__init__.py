"""The local network: which address, which name, which QR code."""
