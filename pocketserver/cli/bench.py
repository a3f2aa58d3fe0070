"""`pocketserver bench`: how fast a running OpenAI-compatible server is, seen from outside."""

import asyncio
import json
import secrets
from typing import Annotated

import typer

from pocketserver import settings as settings_module
from pocketserver.bench.client import chat_client
from pocketserver.bench.measures import AFTER_RESTART, FIGURES, Figure, make_known
from pocketserver.bench.prompts import Prompts, calibrated
from pocketserver.bench.results import Result, as_document, as_table
from pocketserver.bench.run import MAX_ROUNDS, Plan, measure
from pocketserver.cli.servers import Pid, Port, chosen_server
from pocketserver.errors import UsageError
from pocketserver.gate.keys import KeyStore


def bench(
    url: Annotated[
        str | None, typer.Argument(help="An OpenAI-compatible server; this machine's running one if left out.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model of it; the loaded one if left out.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="Samples of each figure.")] = 5,
    only: Annotated[str | None, typer.Option(help="Names of figures, with commas between.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the prompts; a new one each time if left out.")] = None,
    after_restart: Annotated[
        bool, typer.Option("--after-restart", help="Measure a conversation of an earlier run; needs its --seed.")
    ] = False,
    pid: Pid = None,
    port: Port = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a server: first token, decode rate, a typical turn, structured output, cancelling, rewriting.

    The key is taken from POCKETSERVER_API_KEY; for this machine's own server it is found by itself.
    """
    if after_restart and seed is None:
        raise UsageError("--after-restart goes on with the conversation of an earlier run: give the --seed it printed.")
    figures = (AFTER_RESTART,) if after_restart else chosen_figures(only)
    address, key = _target(url, pid, port)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    results, named, prompts = asyncio.run(_measured(address, key, model, figures, 1 if after_restart else rounds, seed))
    if as_json:
        document = {
            "url": address,
            "model": named,
            "seed": seed,
            "figures": [as_document(result) for result in results],
        }
        typer.echo(json.dumps(document))
        return
    typer.echo(f"{named} at {address}, {prompts.tokens_per_word:.2f} tokens a word\n{as_table(results)}")
    if not after_restart:
        typer.echo(f"Restart the server, then: pocketserver bench --after-restart --seed {seed} {url or ''}", err=True)


def chosen_figures(only: str | None) -> tuple[Figure, ...]:
    """The figures of these names, all without. Raises UsageError listing the names."""
    if only is None:
        return FIGURES
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    known = {figure.name: figure for figure in FIGURES}
    if not wanted or any(name not in known for name in wanted):
        raise UsageError(f"--only takes names out of: {', '.join(known)}.")
    return tuple(known[name] for name in known if name in wanted)


async def _measured(
    url: str, key: str | None, model: str | None, figures: tuple[Figure, ...], rounds: int, seed: int
) -> tuple[list[Result], str, Prompts]:
    async with chat_client(url, key=key, model=model) as client:
        prompts = await calibrated(client, seed)
        plan = Plan(prompts=prompts, rounds=rounds)
        results = await measure(client, figures, plan, lambda title: typer.echo(f"measuring: {title}", err=True))
        if AFTER_RESTART not in figures:
            await make_known(client, prompts)
        return results, client.model, prompts


def _target(url: str | None, pid: int | None, port: int | None) -> tuple[str, str | None]:
    """Address and key. Our own key goes to our own server only."""
    effective = settings_module.load(flags={}).settings
    if url is not None:
        return url, effective.api_key
    server = chosen_server(pid, port)
    keys = KeyStore(effective.home_folder, main_key_override=effective.api_key)
    return f"http://127.0.0.1:{server.port}/v1", keys.main_key()
