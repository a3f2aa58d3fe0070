"""`pocketserver calibrate`: a real server, measured from outside, becomes a device of the simulator."""

import asyncio
import dataclasses
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from pocketserver import settings as settings_module
from pocketserver.bench.calibration import Calibration, Measurements, as_toml, fit, measure
from pocketserver.bench.client import chat_client
from pocketserver.bench.prompts import calibrated
from pocketserver.bench.run import MAX_ROUNDS
from pocketserver.errors import StartupError

LOAD_LIMIT_SECONDS = 300.0
_LOOK_SECONDS = 0.05


def calibrate(
    url: Annotated[str, typer.Argument(help="An OpenAI-compatible server.")],
    out: Annotated[Path | None, typer.Option(help="Write the device file there; standard output if left out.")] = None,
    model: Annotated[str | None, typer.Option(help="A model of it; the loaded one if left out.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="How often each request is repeated.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure a server and write a device file that `pocketserver sim serve --device FILE` plays.

    Start it right after the server to see its loading time. The key is taken from POCKETSERVER_API_KEY.
    """
    if out is not None and out.suffix != ".toml":
        raise StartupError(f"--out {out} must end with .toml, so that `--device` takes it for a file.")
    key = settings_module.load(flags={}).settings.api_key
    found, named = asyncio.run(_calibrated(url, key, model, rounds))
    text = as_toml(found, model=named, source=url)
    if out is not None:
        _write(out, text)
    if as_json:
        typer.echo(json.dumps({"model": named, **asdict(found)}))
    elif out is None:
        typer.echo(text, nl=False)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{path} cannot be written: {error.strerror}.") from error


async def _calibrated(url: str, key: str | None, model: str | None, rounds: int) -> tuple[Calibration, str]:
    def say(what: str) -> None:
        typer.echo(f"measuring: {what}", err=True)

    load_seconds = await _loading(url, key)
    async with chat_client(url, key=key, model=model) as client:
        prompts = await calibrated(client, time.time_ns() % 1_000_000)
        seen: Measurements = await measure(client, prompts, rounds=rounds, say=say)
        return fit(dataclasses.replace(seen, load_seconds=load_seconds)), client.model


async def _loading(url: str, key: str | None) -> float | None:
    """How long the server went on loading its model; None where its health does not show that, or it was ready."""
    address = url.rstrip("/").removesuffix("/v1") + "/health"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    began = time.monotonic()
    seen_loading = False
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=5)) as session:
        while time.monotonic() - began < LOAD_LIMIT_SECONDS:
            loading = await _is_loading(session, address)
            if not loading:
                return time.monotonic() - began if seen_loading and loading is False else None
            seen_loading = True
            await asyncio.sleep(_LOOK_SECONDS)
    return None


async def _is_loading(session: aiohttp.ClientSession, address: str) -> bool | None:
    """By our own health (`model` null), or llama.cpp's (503 while loading); None where neither is spoken."""
    try:
        async with session.get(address) as response:
            document = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    if response.status == 503:
        return True
    if not isinstance(document, dict) or "model" not in document:
        return None
    return document["model"] is None
