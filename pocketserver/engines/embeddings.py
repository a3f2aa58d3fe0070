"""What every engine that embeds agrees on: how an entry that is too long, empty or foreign is answered."""

from typing import TypeVar

from pocketserver.errors import Code, Refusal

PARAM = "input"
"""The field that refusals name unless the wire API says another."""

T = TypeVar("T")


def cut_to(window: int, tokens: list[T], index: int, *, truncate: bool) -> list[T]:
    """An entry's tokens, cut to the window where that is wished. Raises Refusal that names the entry by its index."""
    if not tokens:
        raise Refusal(Code.INVALID_PARAMETER, f"{PARAM}[{index}] is empty. Send some text.", param=PARAM)
    if len(tokens) <= window:
        return tokens
    if not truncate:
        raise too_long(window, len(tokens), index)
    return tokens[:window]


def too_long(window: int, tokens: int, index: int, *, at_least: bool = False) -> Refusal:
    """The refusal of an entry that does not fit."""
    said = f"at least {tokens}" if at_least else f"{tokens}"
    return Refusal(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"This model's maximum context length is {window} tokens. However, {PARAM}[{index}] resulted in {said} tokens."
        " Please shorten it or start the server with a larger --context.",
        param=PARAM,
        details={"prompt_tokens": tokens, "context_size": window, "index": index},
    )


def unknown_token(index: int, token: int, size: int) -> Refusal:
    """The refusal of a token id that the vocabulary does not have."""
    return Refusal(
        Code.INVALID_PARAMETER,
        f"{PARAM}[{index}] holds the token {token}; this model's tokens run from 0 to {size - 1}.",
        param=PARAM,
    )
