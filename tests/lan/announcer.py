"""A program for the test bed: an HTTP listener that answers `/health`, and the `Advertiser`; nothing else.

Writes one JSON line for each status to standard output. `SIGUSR1` makes it announce another state.
"""

import argparse
import asyncio
import json
import signal
from pathlib import Path

from aiohttp import web

from pocketserver.lan import address, identity
from pocketserver.lan.mdns import Advertiser, Status
from pocketserver.lan.names import Description, Readiness


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--name", default="pocketserver")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--advertise")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--poll-seconds", type=float, default=0.5)
    asyncio.run(serve(parser.parse_args()))


async def serve(options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    runner = await listen(options)
    description = Description(version="0.1", model=options.model, context_tokens=4096)
    advertiser = Advertiser(
        name=options.name,
        port=options.port,
        identity=identity.load(options.home, options.port),
        description=description,
        look=lambda: address.choose(options.advertise, options.host).announced,
        report=tell,
        poll_seconds=options.poll_seconds,
        settle_seconds=0.2,
        text_interval_seconds=0.5,
    )
    busy = Description(version="0.1", model=options.model, context_tokens=4096, state=Readiness.BUSY)
    loop.add_signal_handler(signal.SIGUSR1, advertiser.update, busy)
    async with advertiser:
        await stopped.wait()
    await runner.cleanup()


async def listen(options: argparse.Namespace) -> web.AppRunner:
    application = web.Application()
    application.router.add_get("/health", health)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    return runner


async def health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def tell(status: Status) -> None:
    print(
        json.dumps(
            {
                "state": status.state.value,
                "name": status.name,
                "host_name": status.host_name,
                "addresses": status.addresses,
                "sentence": status.sentence,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
