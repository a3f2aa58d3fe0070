"""How the simulator counts and cuts text: by a documented rule, or as a model whose file is named does it."""

import codecs
import json
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from pocketserver.chat import GenerationRequest, PromptToken, Tool
from pocketserver.engines.sim.prose import prose, token_count, tokens_of

_TURN_TOKENS = 4
"""Tokens that each message, each call and each tool costs beside its text, as chat templates do."""
_END_OF_PROMPT = "<|assistant|>"
_VOCABULARY_SIZE = 65_536
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Tokenizer(Protocol):
    """One model's tokens. Safe from several threads."""

    @property
    def is_quick(self) -> bool:
        """Whether everything is done in microseconds, so that no thread is needed for it."""
        ...

    def prompt_tokens(self, request: GenerationRequest) -> int:
        """How many tokens the whole prompt has. May raise Refusal for what the model's template cannot express."""
        ...

    def read(self, request: GenerationRequest) -> Sequence[PromptToken]:
        """The prompt's tokens, as many as `prompt_tokens`. May raise Refusal as that does."""
        ...

    def split(self, text: str) -> Sequence[str] | Sequence[bytes]:
        """The tokens of an answer; joined, they are the text again. Bytes may be pieces of characters."""
        ...


class RuleTokenizer:
    """The documented rule, see `tokens_of`: a stand-in where only counts and pieces matter."""

    is_quick = True

    def prompt_tokens(self, request: GenerationRequest) -> int:
        if request.prompt_tokens:
            return len(request.prompt_tokens)
        texts = _texts(request)
        return sum(map(token_count, texts)) + _TURN_TOKENS * len(texts) + 1

    def read(self, request: GenerationRequest) -> Sequence[PromptToken]:
        """Marks around each part are the tokens that it costs beside its text; ids are hashes of the tokens."""
        if request.prompt_tokens:
            return [PromptToken(id=token, text=f"<{token}>") for token in request.prompt_tokens]
        texts: list[str] = []
        for mark, text in _parts(request):
            texts += ["<|", mark, "|>", *tokens_of(text), "\n"]
        return [PromptToken(id=_id_of(text), text=text) for text in [*texts, _END_OF_PROMPT]]

    def split(self, text: str) -> Sequence[str]:
        return tokens_of(text)


RULE = RuleTokenizer()


def _texts(request: GenerationRequest) -> list[str]:
    """What the prompt is made of: messages or a raw text, calls, tools."""
    texts = [message.content for message in request.messages] or [(request.prompt or "") + request.suffix]
    for message in request.messages:
        if message.tool_calls:
            texts += [call.name + call.arguments for call in message.tool_calls]
    if request.tools:
        texts += map(_definition, request.tools)
    return texts


def _parts(request: GenerationRequest) -> list[tuple[str, str]]:
    """The same texts, each with its mark."""
    marks = [message.role.value for message in request.messages] or ["raw"]
    marks += ["call" for message in request.messages for _ in message.tool_calls] + ["tool"] * len(request.tools)
    return [*zip(marks, _texts(request), strict=True)]


def _id_of(token: str) -> int:
    return zlib.crc32(token.encode("utf-8", errors="replace")) % _VOCABULARY_SIZE


def _definition(tool: Tool) -> str:
    """A tool as a template writes it: one line of JSON."""
    return json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters})


class Piece(NamedTuple):
    """Whole characters, and how many tokens made them."""

    text: str
    tokens: int


def pieces(tokens: Iterable[str] | Iterable[bytes]) -> list[Piece]:
    """Tokens as whole characters, for what is never sent in halves: reasoning and arguments."""
    decoder, found, held = _Utf8Decoder(errors="replace"), list[Piece](), 0
    for token in tokens:
        held += 1
        text = token if isinstance(token, str) else decoder.decode(token)
        if text:
            found.append(Piece(text, held))
            held = 0
    if held and found:
        found[-1] = Piece(found[-1].text, found[-1].tokens + held)
    return found


def prose_of(tokenizer: Tokenizer, seed: str, count: int) -> Iterable[str] | Iterable[bytes]:
    """So many tokens of seeded prose. No word is less than a token."""
    if isinstance(tokenizer, RuleTokenizer):
        return islice(prose(seed), count)
    return tokenizer.split("".join(islice(prose(seed), count)))[:count]
