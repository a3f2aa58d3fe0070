"""How a guest and a host prove to each other that they know one key, without sending it.

Each side's proof is an HMAC-SHA256 over the very bytes of the hello and the challenge, so that version, room, name and
both nonces are part of it; a label keeps the two directions apart. So a recorded handshake is worth nothing (the host's
nonce is new each time), and neither is a proof that is sent back.
"""

import hashlib
import hmac

_INFO = b"pocketserver.room.v1 link"
_GUEST, _HOST = b"guest", b"host"


def digest_of(key: str) -> bytes:
    """What both sides know of a key: the host keeps no more of a named one (see gate/key_file.py)."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def secret(digest: bytes, room: str) -> bytes:
    """HKDF-SHA256 (RFC 5869) of the key's digest, with the room's code as salt: 32 bytes."""
    extracted = hmac.digest(room.encode(), digest, "sha256")
    return hmac.digest(extracted, _INFO + b"\x01", "sha256")


def guest_proof(secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    """What the guest sends for these two frames."""
    return _mac(secret, _GUEST, hello, challenge)


def host_proof(secret: bytes, hello: bytes, challenge: bytes, host: str, you: str) -> bytes:
    """What the host answers, for itself and for the names that it gives itself and the guest."""
    return _mac(secret, _HOST, hello, challenge, host.encode(), you.encode())


def same(one: bytes, other: bytes) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(one, other)


def _mac(secret: bytes, *parts: bytes) -> bytes:
    """Each part with its length before it, so that no two lists of parts look alike."""
    return hmac.digest(secret, b"".join(len(part).to_bytes(8, "big") + part for part in parts), "sha256")
