"""From a server to its page: the values and doings that pocketserver/page is given. Composition, like assembly.py."""

from collections.abc import Awaitable, Callable

from pocketserver.engines.engine import ModelLoader
from pocketserver.gate.limits import WrongKeyThrottle
from pocketserver.page.owner import OwnerSessions
from pocketserver.page.pairing import PairingDesk
from pocketserver.page.routes import Page
from pocketserver.page.subject import Subject
from pocketserver.server import Server
from pocketserver.wire.device import lane_state


def make_page(server: Server) -> Page | None:
    """The page of a server whose profile has one, unless the settings switch it off."""
    profile, settings = server.effective.profile, server.effective.settings
    if not (profile.page and settings.page):
        return None
    throttle = WrongKeyThrottle(settings.wrong_keys_a_minute, what="codes")
    return Page(
        subject=_subject(server),
        activity=server.activity,
        pairing=PairingDesk(server.keys, throttle),
        owners=OwnerSessions(throttle),
    )


def _subject(server: Server) -> Subject:
    prefix = server.effective.profile.model_prefix

    def model() -> str | None:
        name = server.engine.status.model or server.model_id
        return None if name is None else prefix + name

    return Subject(
        engine=server.engine.name,
        profile=server.effective.profile.name,
        base_url=lambda: server.base_url,
        local_url=lambda: server.local_url,
        other_urls=lambda: server.other_urls,
        status=lambda: server.engine.status,
        state=lambda: lane_state(server.view()),
        model=model,
        lane=server.door,
        keys=server.keys,
        load=_load(server),
        started=server.started,
        simulated=server.simulator is not None,
    )


def _load(server: Server) -> Callable[[str], Awaitable[float]] | None:
    if not isinstance(server.engine, ModelLoader):
        return None
    return lambda name: server.door.load(name, None)
