"""What `/page/state` tells: something to everybody, more with a key, and who owns the page."""

import time

import msgspec

from pocketserver import __version__
from pocketserver.page.activity import Activity, Asking, Failure, LastAnswer, Seen
from pocketserver.page.advice import ADVICE
from pocketserver.page.rates import SPAN_SECONDS
from pocketserver.page.subject import Subject


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An error with what to do about it."""

    failure: Failure
    advice: str


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What needs the key. `rates` are tokens a second, one for each `rate_seconds`, oldest first."""

    engine: str
    runtime: str | None
    uptime_seconds: float
    waiting: int
    requests: tuple[Asking, ...]
    last: LastAnswer | None
    rate_seconds: float
    rates: tuple[float, ...]
    devices: tuple[Seen, ...]
    errors: tuple[Told, ...]


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document. `inside` is None for whoever has no key.

    `progress` runs from 0 to 1 while a model loads. With `loads_on_request` a request may name any installed model.
    """

    version: str
    profile: str
    simulated: bool
    state: str
    problem: str | None
    progress: float | None
    model: str | None
    context_size: int | None
    base_url: str
    other_urls: tuple[str, ...]
    asks_for_key: bool
    authenticated: bool
    owner: bool
    can_switch: bool
    loads_on_request: bool
    now: float
    inside: Inside | None


def page_state(subject: Subject, activity: Activity, *, authenticated: bool, owner: bool) -> PageState:
    """The state as it is now, as far as this reader may see it."""
    status = subject.status()
    sees = authenticated or owner or subject.keys is None
    return PageState(
        version=__version__,
        profile=subject.profile,
        simulated=subject.simulated,
        state=subject.state(),
        problem=status.problem,
        progress=status.load_progress if status.tuning_progress is None else status.tuning_progress,
        model=subject.model(),
        context_size=status.context_size,
        base_url=subject.base_url(),
        other_urls=tuple(subject.other_urls()),
        asks_for_key=subject.keys is not None,
        authenticated=authenticated,
        owner=owner,
        can_switch=owner and subject.load is not None,
        loads_on_request=status.loads_on_request,
        now=time.time(),
        inside=_inside(subject, activity) if sees else None,
    )


def _inside(subject: Subject, activity: Activity) -> Inside:
    return Inside(
        engine=subject.engine,
        runtime=subject.status().runtime,
        uptime_seconds=round(time.monotonic() - subject.started, 1),
        waiting=subject.lane.waiting,
        requests=tuple(activity.asking()),
        last=activity.last,
        rate_seconds=SPAN_SECONDS,
        rates=tuple(activity.rates()),
        devices=tuple(activity.devices()),
        errors=tuple(Told(failure=failure, advice=ADVICE[failure.code]) for failure in activity.failures()),
    )


SENTENCES = {
    "idle": "Ready",
    "busy": "Answering a request",
    "loading": "Loading the model",
    "no_model": "No model is loaded",
    "stuck": "The model makes no progress",
}
"""A state in words, for a browser without scripts."""
