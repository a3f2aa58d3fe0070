"""What the simulator says to a request: reasoning, text and calls, decided before the first token."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from pocketserver.chat import FinishReason, GenerationRequest, Role, TextDelta, Tool, ToolMode
from pocketserver.engines.sim.embedding import tokens_to_embed
from pocketserver.engines.sim.example import tool_arguments
from pocketserver.engines.sim.prose import DEFAULT_TOKENS
from pocketserver.engines.sim.rules import RefusalReply, Reply, ScriptedCall
from pocketserver.engines.sim.tokens import RULE, Tokenizer, prose_of
from pocketserver.errors import Refusal

_EFFORT_TOKENS = {"minimal": 4, "low": 8, "medium": 16, "high": 32, "xhigh": 64, "max": 64}


class Script(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One answer. `tokens` may be endless; text tokens are characters already, bytes may be pieces of them."""

    tokens: Iterable[str] | Iterable[bytes] = ()
    reasoning: Iterable[str] | Iterable[bytes] = ()
    calls: Sequence[ScriptedCall] = ()
    finish_reason: FinishReason | None = None
    spoken: "Spoken | None" = None
    """The same tokens as events, when the reply is nothing but short plain text that was said before."""


class Spoken:
    """A short plain reply, kept for the next time: its script, the events that say it, and one event for all."""

    __slots__ = ("events", "script", "together", "tokens")

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        self.events = [TextDelta(text=token) for token in tokens]
        self.together = TextDelta(text="".join(tokens), tokens=len(tokens))
        self.script = Script(tokens=tokens, spoken=self)


def scripted(reply: Reply, request: GenerationRequest, seed: str, tokenizer: Tokenizer = RULE) -> Script:
    """A rule's reply as a script. Raises the Refusal that the rule asks for."""
    if isinstance(reply.refusal, RefusalReply):
        wanted = reply.refusal
        raise Refusal(
            wanted.code, wanted.message or "A rule of the simulator refuses this.", retry_after=wanted.retry_after
        )
    calls = () if request.tool_choice.mode is ToolMode.NONE else reply.tool_calls
    return Script(
        tokens=_tokens(reply, request, seed, tokenizer, silent=bool(calls)),
        reasoning=tokenizer.split(reply.reasoning) if reply.reasoning else (),
        calls=calls,
        finish_reason=FinishReason(reply.finish_reason) if reply.finish_reason else None,
    )


def _tokens(
    reply: Reply, request: GenerationRequest, seed: str, tokenizer: Tokenizer, *, silent: bool
) -> Iterable[str] | Iterable[bytes]:
    if reply.tokens is not None:
        return reply.token_bytes()
    if reply.echo:
        return tokenizer.split(last_message(request))
    if reply.prose_tokens is not None:
        return prose_of(tokenizer, seed, reply.prose_tokens)
    text = reply.text if reply.text is not None else reply.refusal
    if isinstance(text, str):
        return tokenizer.split(text)
    return () if silent else prose_of(tokenizer, seed, DEFAULT_TOKENS)


def forced_call(request: GenerationRequest, seed: str) -> ScriptedCall:
    """The call that `tool_choice` demands, with arguments that the tool's schema admits."""
    tool = _chosen(request)
    return ScriptedCall(name=tool.name, arguments=tool_arguments(tool.parameters, seed=seed))


def thinking(request: GenerationRequest, seed: str, tokenizer: Tokenizer = RULE) -> Iterable[str] | Iterable[bytes]:
    """Reasoning in proportion to the effort that was asked for; none unasked."""
    count = _EFFORT_TOKENS.get(request.reasoning_effort or "", 0)
    return prose_of(tokenizer, f"thinking:{seed}", count) if count else ()


def last_message(request: GenerationRequest) -> str:
    """What `echo` repeats: the last thing the user said, or the raw prompt."""
    if not request.messages:
        return raw_text(request)
    users = (message for message in reversed(request.messages) if message.role is Role.USER)
    return next(users, request.messages[-1]).content


def raw_tokens(request: GenerationRequest) -> list[str]:
    """The simulator's tokens of a raw prompt; a token id stands for itself."""
    return tokens_to_embed(request.prompt_tokens or request.prompt or "")


def raw_text(request: GenerationRequest) -> str:
    """A raw prompt as it is echoed."""
    return "".join(raw_tokens(request)) if request.prompt_tokens else request.prompt or ""


def call_id(request: GenerationRequest, index: int) -> str:
    """The same call of the same request has the same id in every run."""
    return f"call_{request.id[-20:]}{index:04d}"


def seed_of(request: GenerationRequest, seed: int) -> str:
    """What a reply is made from: the device's seed, the request's seed, and every word of the conversation."""
    said = [message.content for message in request.messages] or raw_text(request) + request.suffix
    return f"{seed}:{request.sampling.seed}:{_encode(said).decode()}"


_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


def _chosen(request: GenerationRequest) -> Tool:
    name = request.tool_choice.name
    return next((tool for tool in request.tools if tool.name == name), request.tools[0])
