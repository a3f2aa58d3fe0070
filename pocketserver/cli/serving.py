"""What `serve` does from settings to exit: model, engine, listeners, announcement, banner, signals, shutdown."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from pocketserver import __version__
from pocketserver.assembly import assemble, make_engine, prepare_model
from pocketserver.chat import EngineState
from pocketserver.cli import banner
from pocketserver.cli.live import Screen, screen_for
from pocketserver.errors import StartupError
from pocketserver.gate import key_file
from pocketserver.lan import address, identity, mdns
from pocketserver.lan.names import Auth, Description, Readiness
from pocketserver.listening import is_loopback
from pocketserver.server import Server
from pocketserver.serving import serving
from pocketserver.settings import Effective
from pocketserver.telemetry import logs

_FOLLOW_SECONDS = 1.0
_COLLECT_AFTER_OBJECTS = 20_000


def run(effective: Effective) -> None:
    """Serve until a signal, `pocketserver stop --server`, or the end of the parent's pipe. Raises StartupError."""
    if sys.platform == "win32":
        asyncio.run(_serve(effective))
        return
    import uvloop

    uvloop.run(_serve(effective))


async def _serve(effective: Effective) -> None:
    settings = effective.settings
    secrets = [secret for secret in (settings.api_key, settings.upstream_key, settings.room_key) if secret]
    with logs.configure(settings.log, level=settings.log_level, secrets=secrets) as log:
        warnings = banner.risks(settings)
        exposed = await asyncio.to_thread(key_file.exposure, settings.home_folder)
        if exposed:
            warnings.append(f"WARNING: {exposed}")
        for warning in warnings:
            banner.say(warning)
        model = await prepare_model(settings, banner.fetch_progress)
        server = assemble(effective, make_engine(settings, model, log.logger.warning), log, model)
        if server.keys is not None:
            await asyncio.to_thread(server.keys.main_key)  # made at the first start; a broken key file ends it here
        choice = await asyncio.to_thread(address.choose, settings.advertise, settings.host)
        server.advertised_host = choice.primary.address
        server.other_hosts = tuple(candidate.address for candidate in choice.others if not candidate.ip.is_loopback)
        async with AsyncExitStack() as stack:
            screen = screen_for(server, warnings)
            stack.enter_context(
                _signals(server, screen)
            )  # first, so that it is last to go: a second signal ends the shutdown
            await stack.enter_async_context(serving(server))
            await server.engine.start()
            server.model_id = server.model_id or server.engine.status.model
            await stack.enter_async_context(_announced(server, screen))
            banner.show(server)
            _collect_less()
            await asyncio.to_thread(_write_ready_line, server)
            if settings.exit_on_stdin_close:
                _end_with_parent(server)
            async with screen:
                await server.shut_down.wait()
            banner.say_goodbye(server)


def _collect_less() -> None:
    """Let the garbage collector pass over what the start made, and come by less often: requests leave few cycles, and
    with the usual limit of 700 new objects it takes a twentieth of a busy server's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 20)


@contextlib.contextmanager
def _signals(server: Server, screen: Screen) -> Iterator[None]:
    """SIGINT and SIGTERM end the server, a second one at once; Ctrl-\\ cancels the generation that is running."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        if server.shut_down.is_set():
            screen.restore()
            os._exit(1)  # the model process ends with its pipe
        server.shut_down.set()

    handlers: dict[int, Callable[[], object]] = {signal.SIGINT: end, signal.SIGTERM: end}
    for name in ("SIGQUIT", "SIGBREAK"):
        if hasattr(signal, name):
            handlers[getattr(signal, name)] = server.door.stop
    with contextlib.ExitStack() as stack:
        for number, handler in handlers.items():
            stack.callback(_handle(loop, number, handler))
        yield


def _handle(loop: asyncio.AbstractEventLoop, number: int, handler: Callable[[], object]) -> Callable[[], object]:
    """Install a handler; returns what undoes it. Windows' loops know no signals, so the plain way is the other one."""
    try:
        loop.add_signal_handler(number, handler)
    except NotImplementedError:
        before = signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler))
        return lambda: signal.signal(number, before)
    return lambda: loop.remove_signal_handler(number)


@asynccontextmanager
async def _announced(server: Server, screen: Screen) -> AsyncIterator[None]:
    """Tell the network, unless that is off or nobody else could connect; the record follows the model's state."""
    settings = server.effective.settings
    if not settings.mdns or is_loopback(settings.host):
        yield
        return
    advertiser = mdns.Advertiser(
        name=settings.name or _default_name(),
        port=server.port,
        identity=await asyncio.to_thread(identity.load, settings.home_folder, server.port),
        description=_description(server),
        look=lambda: _announced_addresses(server),
        report=lambda status: _report(server, screen, status),
    )
    async with advertiser:
        following = asyncio.create_task(_follow(server, advertiser))
        try:
            yield
        finally:
            following.cancel()


def _announced_addresses(server: Server) -> Sequence[address.Candidate]:
    """What mDNS tells; nothing while a simulated device has left in good order."""
    if server.simulator is not None and server.simulator.says_goodbye:
        return ()
    settings = server.effective.settings
    return address.choose(settings.advertise, settings.host).announced


async def _follow(server: Server, advertiser: mdns.Advertiser) -> None:
    told = _description(server)
    while True:
        await asyncio.sleep(_FOLLOW_SECONDS)
        now = _description(server)
        if now != told:
            advertiser.update(now)
            told = now


def _description(server: Server) -> Description:
    status = server.engine.status
    ready = status.state is EngineState.READY
    return Description(
        version=__version__,
        auth=Auth.BEARER if server.keys is not None else Auth.NONE,
        model=status.model,
        context_tokens=status.context_size if ready else None,
        state=Readiness.READY if ready else Readiness.LOADING,
        room=server.room_host.code if server.room_host is not None and server.room_host.open else None,
    )


def _report(server: Server, screen: Screen, status: mdns.Status) -> None:
    if status.state is mdns.State.ADVERTISED:  # it stays ours while the announcement is renewed
        server.network_name = status.host_name.rstrip(".")
    if status.addresses and status.addresses[0] != server.advertised_host and not server.effective.settings.advertise:
        server.advertised_host = status.addresses[0]
        screen.say(f"Base URL   {server.base_url} (the address changed)")
    if status.sentence:
        screen.say(status.sentence)


def _default_name() -> str:
    """The machine's name, which its owner recognises in a list."""
    import socket

    return f"pocketserver on {socket.gethostname().split('.')[0]}"


def _write_ready_line(server: Server) -> None:
    target = server.effective.settings.ready_json
    if target is None:
        return
    line = {
        "event": "ready",
        "base_url": server.local_url,
        "port": server.port,
        "api_key": None if server.keys is None else server.keys.main_key(),
        "pid": os.getpid(),
        "profile": server.effective.profile.name,
        "engine": server.engine.name,
        "model": None if server.model_id is None else server.effective.profile.model_prefix + server.model_id,
    }
    if server.engine.name == "sim":
        line |= {"control_url": server.control_url, "control_token": server.control_token}
    text = msgspec.json.encode(line).decode() + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        _write_private(Path(target), text)


def _write_private(path: Path, text: str) -> None:
    """The line holds a key, so the file is its owner's alone, and whole when it is there. Raises StartupError."""
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StartupError(f"--ready-json {path} cannot be written: {error.strerror}.") from error


def _end_with_parent(server: Server) -> None:
    """End when the parent closes our standard input. A daemon thread, since a read cannot be cancelled everywhere."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(server.shut_down.set)

    threading.Thread(target=wait, name="parent", daemon=True).start()
