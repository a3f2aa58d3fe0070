"""Random walks through a schema's grammar: values that the grammar admits, without a model."""

import random

import llguidance
import numpy as np

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.constraint import schema_grammar
from pocketserver.engines.llama.schema_check import prepared

_BYTES = llguidance.LLTokenizer("byte")
_CLOSING = b'"}],'
_MOST_BYTES = 3_000


def matcher_for(schema: JsonValue) -> llguidance.LLMatcher:
    """Raises SchemaFault; the matcher may be in error, which is llguidance's refusal."""
    matcher = llguidance.LLMatcher(_BYTES, schema_grammar(prepared(schema)), log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def admits(schema: JsonValue, text: str) -> bool:
    matcher = matcher_for(schema)
    assert not matcher.is_error(), matcher.get_error()
    data = text.encode()
    return matcher.try_consume_tokens(list(data)) == len(data) and (matcher.is_accepting() or matcher.is_stopped())


def walk(matcher: llguidance.LLMatcher, dice: random.Random) -> str | None:
    """One value, byte by byte; None when it grows too long. Strings and lists are kept short by luck."""
    matcher, written = matcher.deep_copy(), bytearray()
    while not matcher.is_stopped() and len(written) < _MOST_BYTES:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:256]
        allowed = [int(byte) for byte in np.flatnonzero(bits) if byte < 0x7F]
        if not allowed or (matcher.is_accepting() and dice.random() < 0.2):
            return written.decode() if matcher.is_accepting() else None
        closing = [byte for byte in allowed if byte in _CLOSING]
        byte = dice.choice(closing if closing and dice.random() < 0.4 else allowed)
        matcher.consume_token(byte)
        assert not matcher.is_error(), matcher.get_error()
        written.append(byte)
    return written.decode() if matcher.is_stopped() else None
