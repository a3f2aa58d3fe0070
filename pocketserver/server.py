"""One running server and what belongs to it; the parts are put together by assembly.py, opened by serving.py."""

import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from pocketserver.answering import Exchange
from pocketserver.chat import ModelInfo
from pocketserver.engines.engine import Engine
from pocketserver.errors import Code
from pocketserver.gate.admission import Door
from pocketserver.gate.keys import KeyStore
from pocketserver.listening import EVERYWHERE
from pocketserver.models.library import ModelLibrary, StoredModel
from pocketserver.page.activity import Activity
from pocketserver.page.routes import Page
from pocketserver.room.host import RoomHost
from pocketserver.room.owner import shown
from pocketserver.settings import Effective
from pocketserver.simulator.simulator import Simulator
from pocketserver.telemetry.logs import ServerLog
from pocketserver.telemetry.metrics import Metrics
from pocketserver.wire.device import DeviceView, lane_state
from pocketserver.wire.ollama_models import Capabilities, nothing_known


@dataclass(slots=True, kw_only=True)
class Server:
    """One running server and what belongs to it."""

    effective: Effective
    engine: Engine
    door: Door
    keys: KeyStore | None
    metrics: Metrics
    log: ServerLog
    installed: Callable[[], Sequence[ModelInfo]]
    """Installed models, the loaded one marked; reads the disk, so it is asked in a thread."""
    on_exchange: Callable[[Exchange], None] | None = None
    """Told of every finished request, beside the log and the metrics."""
    model_id: str | None = None
    """The model that is served, loaded or not yet."""
    port: int = 0
    advertised_host: str = "127.0.0.1"
    other_hosts: tuple[str, ...] = ()
    network_name: str | None = None
    """The `.local` name under which mDNS announces this server, once it does."""
    room: str = ""
    """The code of the room that this server stands for, once it is known."""
    room_host: RoomHost | None = None
    """The room that is open on this server."""
    instance: str = ""
    """Our name in the chain of servers that a request passes, where we pass it on."""
    served: int = 0
    """Answers given since the start."""
    control_url: str = ""
    control_token: str = ""
    simulator: Simulator | None = None
    """The simulated device, when the engine is one."""
    activity: Activity = field(default_factory=Activity)
    """What went on lately, for the page and the terminal."""
    page: Page | None = None
    """What a person sees in a browser, where the profile has it."""
    library: ModelLibrary | None = None
    """Every model of this machine, for the routes that list and change them."""
    examine: Callable[[StoredModel], Awaitable[Capabilities | None]] = nothing_known
    """What the engine knows of a model without loading it."""
    at_work: tuple[AbstractAsyncContextManager[object], ...] = ()
    """What goes on beside the requests, as long as the server runs."""
    new_id: Callable[[], str] = field(default_factory=lambda: request_ids(secrets.token_hex(6)))
    started: float = field(default_factory=time.monotonic)
    shut_down: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is to end: by a signal, a command, or a parent that closed its pipe."""

    @property
    def base_url(self) -> str:
        """The address under which other devices reach this server."""
        return f"http://{_in_url(self.advertised_host)}:{self.port}/v1"

    @property
    def other_urls(self) -> list[str]:
        """The same server under its other addresses."""
        return [f"http://{_in_url(host)}:{self.port}/v1" for host in self.other_hosts]

    @property
    def local_url(self) -> str:
        """An address that works on this machine."""
        host = self.effective.settings.host
        return f"http://{_in_url('127.0.0.1' if host in EVERYWHERE else host)}:{self.port}/v1"

    async def models(self) -> Sequence[ModelInfo]:
        return await asyncio.to_thread(self.installed)

    def status(self) -> dict[str, Any]:
        """For `pocketserver status`; nothing secret."""
        status = self.engine.status
        return {
            "pid": os.getpid(),
            "base_url": self.base_url,
            "local_url": self.local_url,
            "profile": self.effective.profile.name,
            "engine": self.engine.name,
            "model": status.model or self.model_id,
            "asks_for_key": self.keys is not None,
            "state": lane_state(self.view()),
            "context_size": status.context_size,
            "waiting": self.door.waiting,
            "uptime_seconds": round(time.monotonic() - self.started, 1),
            "problem": status.problem,
        }

    def view(self) -> DeviceView:
        return DeviceView(
            status=lambda: self.engine.status,
            models=self.models,
            lane=self.door,
            engine=self.engine.name,
            keyless=self.keys is None,
            started=self.started,
            model_prefix=self.effective.profile.model_prefix,
            room=lambda: self.room,
            served=lambda: self.served,
            guests=lambda: None if self.room_host is None else shown(self.room_host)["guests"],
        )


def request_ids(prefix: str) -> Callable[[], str]:
    """A source of ids that do not repeat: counting is cheaper than random bytes for each request."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers):08x}"


def make_door(engine: Engine, effective: Effective, on_waited: Callable[[float], None]) -> Door:
    """The admission that the settings ask for: `mutex` admits one and refuses the rest, `queue` lets some wait."""
    settings = effective.settings
    mutex = settings.admission == "mutex"
    return Door(
        engine,
        limit=1 if mutex else settings.max_queue,
        full=Code.MODEL_BUSY if mutex else Code.QUEUE_FULL,
        stall_seconds=settings.stall_seconds,
        queue_seconds=settings.queue_seconds,
        on_waited=on_waited,
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
