"""From measurements of a real server to the rates of a simulated device, each with the error of its fit."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pocketserver.bench.client import Answer, ChatClient, UnmeasurableError
from pocketserver.bench.prompts import Prompts
from pocketserver.errors import StartupError

PROMPT_TOKENS = (64, 256, 1024, 2048)
DEPTHS = (0, 512, 2048)
DECODED_TOKENS = 64
CACHED_TOKENS = 1024
FEWEST_TOKENS = 12
"""Shorter answers say nothing about a rate."""
LONGEST_PROMPT_SECONDS = 30.0
"""A prompt that takes so long is the last one: longer ones are not asked."""
_FLAT_TOKENS = 1_000_000
"""A device that is half as fast only this deep does not slow down."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was seen. Prompts: uncached tokens and seconds to the first text. Decoding: mean depth and seconds a token.

    `gaps` are the times between two pieces of text, as shares of their median. `cached` are tokens of a known prompt,
    how many of them the server took from its cache, and the seconds to the first text.
    """

    prompts: Sequence[tuple[float, float]]
    decoding: Sequence[tuple[float, float]]
    gaps: Sequence[float] = ()
    cached: Sequence[tuple[int, int, float]] = ()
    load_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A device's figures in the simulator's words. `errors` is the largest deviation of each fit from what was seen."""

    prompt_tokens_per_second: float
    tokens_per_second: float
    first_token_seconds: float
    slowing_tokens: float | None
    jitter: float
    load_seconds: float | None
    cached_share: float | None
    """What part of a known prompt the server did not read again; None where it does not tell."""
    cached_seconds: float | None
    errors: Mapping[str, float] = field(default_factory=dict)


async def measure(client: ChatClient, prompts: Prompts, *, rounds: int, say: Say) -> Measurements:
    """Some two dozen requests, one after another. Raises StartupError when too few of them can be measured."""
    say("prompts of growing length")
    by_length = await _prompts(client, prompts, rounds)
    say("decoding at growing depth")
    decoding, gaps = await _decoding(client, prompts, rounds)
    say("a prompt that is known already")
    cached = await _cached(client, prompts, rounds)
    if len({round(tokens) for tokens, _ in by_length}) < 2 or not decoding:
        raise StartupError(f"{client.base_url} cannot be calibrated: too few of its answers can be measured.")
    return Measurements(prompts=by_length, decoding=decoding, gaps=gaps, cached=cached)


async def _prompts(client: ChatClient, prompts: Prompts, rounds: int) -> list[tuple[float, float]]:
    """The median of the rounds for each length."""
    points = []
    for length in PROMPT_TOKENS:
        answers = []
        for number in range(rounds):
            chat = prompts.single(f"calibrate/{length}/{number}", length, "Who is this about?")
            answers += await _answered(client, chat, 2)
        if not answers:
            break
        points.append(_median_point([(_uncached(answer, length), answer.first_text_seconds) for answer in answers]))
        if points[-1][1] > LONGEST_PROMPT_SECONDS:
            break
    return points


async def _decoding(
    client: ChatClient, prompts: Prompts, rounds: int
) -> tuple[list[tuple[float, float]], tuple[float, ...]]:
    points, gaps = [], []
    for depth in DEPTHS:
        chat = prompts.single("deep", depth or 1, "Continue this story at length.")
        found = []
        for number in range(rounds):
            for answer in await _answered(client, chat, DECODED_TOKENS, temperature=0.7, seed=number):
                if answer.completion_tokens < FEWEST_TOKENS:
                    continue
                mean_depth = (answer.prompt_tokens or depth) + answer.completion_tokens / 2
                found.append((mean_depth, 1 / answer.tokens_per_second))
                gaps += _gaps(answer)
        if found:
            points.append(_median_point(found))
    return points, tuple(gaps)


async def _cached(client: ChatClient, prompts: Prompts, rounds: int) -> list[tuple[int, int, float]]:
    """The same prompt again and again; the first time makes it known."""
    chat = prompts.single("calibrate/cached", CACHED_TOKENS, "Who is this about?")
    answers = [answer for _ in range(rounds + 1) for answer in await _answered(client, chat, 2)]
    return [
        (answer.prompt_tokens, answer.cached_tokens, answer.first_text_seconds)
        for answer in answers[1:]
        if answer.prompt_tokens is not None and answer.cached_tokens is not None
    ]


async def _answered(
    client: ChatClient, chat: Sequence[Mapping[str, str]], tokens: int, **fields: object
) -> list[Answer]:
    """One answer, or none where the server cannot answer this (its context may be too small)."""
    try:
        return [await client.answer(chat, tokens, **({"temperature": 0} | fields))]
    except UnmeasurableError:
        return []


def _uncached(answer: Answer, asked: int) -> float:
    return (answer.prompt_tokens or asked) - (answer.cached_tokens or 0)


def _gaps(answer: Answer) -> list[float]:
    """Times between pieces; nothing where pieces are not tokens, as with servers that send several at once."""
    times = answer.text_seconds
    if len(times) < FEWEST_TOKENS or len(times) < 0.9 * answer.completion_tokens:
        return []
    gaps = [after - before for before, after in pairwise(times)]
    median = statistics.median(gaps)
    return [gap / median for gap in gaps] if median > 0 else []


def _median_point(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(x for x, _ in points), statistics.median(y for _, y in points)


# The fit


def fit(seen: Measurements) -> Calibration:
    """Straight lines through what was seen, the relative deviations as small as can be.

    The simulator's own model: first text = fixed cost + uncached tokens / rate + one token; a token's time grows with
    its depth.
    """
    at_once, each, prompt_error = _line(seen.prompts)
    token, slower, decode_error = _line(seen.decoding) if len(seen.decoding) > 1 else (seen.decoding[0][1], 0.0, 0.0)
    slowing = token / slower if slower > 0 else None
    if slowing is None or slowing > _FLAT_TOKENS:
        slowing, token = None, statistics.fmean(seconds for _, seconds in seen.decoding)
        decode_error = max(abs(token / seconds - 1) for _, seconds in seen.decoding)
    if each <= 0:
        raise StartupError("Longer prompts take this server no longer: it cannot be calibrated from outside.")
    return Calibration(
        prompt_tokens_per_second=1 / each,
        tokens_per_second=1 / token,
        first_token_seconds=max(0.0, at_once - token),
        slowing_tokens=slowing,
        jitter=_spread(seen.gaps),
        load_seconds=seen.load_seconds,
        cached_share=statistics.median(cached / prompt for prompt, cached, _ in seen.cached) if seen.cached else None,
        cached_seconds=statistics.median(seconds for _, _, seconds in seen.cached) if seen.cached else None,
        errors={"prompt": prompt_error, "decode": decode_error},
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Value at 0, slope, and the largest relative deviation of the line that fits best relatively."""
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / (spread or 1.0)
    start = mean_y - slope * mean_x
    return start, slope, max(abs((start + slope * x) / y - 1) for x, y in points)


def _spread(gaps: Sequence[float]) -> float:
    """The standard deviation that the middle of the gaps suggests: single long waits are no jitter."""
    if len(gaps) < FEWEST_TOKENS:
        return 0.0
    low, *_, high = statistics.quantiles(gaps, n=100)[15:84]
    return min(1.0, (high - low) / 2)


def as_toml(found: Calibration, *, model: str, source: str) -> str:
    """A device file: every figure with where it comes from. What a server does not show from outside is left out."""
    measured = f"measured over HTTP at {source}"
    lines = [
        f"# Calibrated from {source}. The fit is off by at most {found.errors['prompt']:.1%} for the time to the first",
        f"# token and {found.errors['decode']:.1%} for decoding. Memory, heat and battery do not show from outside.",
        f"summary = {_text(f'calibrated: {model}')}",
        f"first_token_seconds = {found.first_token_seconds:.4g}  # {measured}",
        f"jitter = {found.jitter:.3g}  # spread of the time between tokens",
    ]
    if found.slowing_tokens is not None:
        lines.append(f"slowing_tokens = {max(1.0, found.slowing_tokens):.4g}  # a token takes twice as long there")
    if found.load_seconds is not None:
        lines.append(f"load_base_seconds = {found.load_seconds:.3g}  # at least: it had begun before")
    if found.cached_share is not None and found.cached_seconds is not None:
        lines.append(
            f"# A known prompt of {CACHED_TOKENS} tokens: {found.cached_share:.0%} of it from the cache, first token "
            f"after {found.cached_seconds:.3g} s. The simulator has no such cache."
        )
    lines += [
        "",
        "[[models]]",
        f"id = {_text(model)}",
        f"prompt_tokens_per_second = {found.prompt_tokens_per_second:.4g}  # {measured}",
        f"tokens_per_second = {found.tokens_per_second:.4g}  # {measured}, at an empty context",
    ]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """A TOML string. Control characters have no place in one."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(sign if sign.isprintable() else "?" for sign in escaped) + '"'
