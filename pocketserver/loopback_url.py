"""Where a base URL in the environment points: some products listen where their clients look."""

import ipaddress
from urllib.parse import urlsplit

from pocketserver.errors import UsageError

OLLAMA_PORT = 11434
"""Ollama's own port, which a product that stands in for it leaves to it."""


def loopback_address(url: str, variable: str) -> tuple[str, int | None]:
    """Host and port of a URL, or of `host:port` without a scheme. Raises UsageError unless it is on this machine."""
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise UsageError(f"{variable} is no URL. Set it to something like http://127.0.0.1:36434.") from None
    if parts.scheme != "http" or not _is_loopback(host):
        raise UsageError(
            f"{variable} points to {host or 'nowhere'!a} over {parts.scheme[:20]!a}, and this profile listens on "
            "loopback over http only. Set it to an address such as http://127.0.0.1:36434, or unset it."
        )
    return ("127.0.0.1" if host == "localhost" else host), port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
