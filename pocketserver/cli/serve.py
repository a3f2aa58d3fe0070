"""`pocketserver serve` and `pocketserver sim serve`: arguments to settings, then the server until it is ended."""

from pathlib import Path
from typing import Annotated

import typer

from pocketserver import settings

Option = typer.Option


def serve(
    ctx: typer.Context,
    profile: Annotated[str | None, Option(help="Which product to be: pocketllm (default), …")] = None,
    engine: Annotated[str | None, Option(help="llama (a real model), sim (scripted), upstream or ray.")] = None,
    upstream: Annotated[
        list[str] | None, Option(help="Another server's base URL, to stand in front of; more than one may be given.")
    ] = None,
    model: Annotated[str | None, Option(help="An installed model's name, or the path of a GGUF file.")] = None,
    context: Annotated[int | None, Option(help="Context size in tokens.")] = None,
    gpu_layers: Annotated[str | None, Option(help="auto, or how many layers to offload.")] = None,
    threads: Annotated[int | None, Option(help="Threads for generation.")] = None,
    kv_type: Annotated[str | None, Option(help="The cache's number format: auto, f16, bf16 or q8_0.")] = None,
    flash_attention: Annotated[str | None, Option(help="auto, on or off.")] = None,
    tuning: Annotated[str | None, Option(help="auto (measure once how the model runs best), or off.")] = None,
    chat_template: Annotated[str | None, Option(help="A Jinja file in place of the model's own template.")] = None,
    reasoning_budget: Annotated[int | None, Option(help="The most tokens a model may think.")] = None,
    host: Annotated[str | None, Option(help="The address to listen on; 0.0.0.0 is every one.")] = None,
    port: Annotated[int | None, Option(help="The port; 0 takes a free one.")] = None,
    advertise: Annotated[str | None, Option(help="The address or interface that others are told.")] = None,
    name: Annotated[str | None, Option(help="The name that others see on the network.")] = None,
    mdns: Annotated[bool | None, Option("--mdns/--no-mdns", help="Announce this server on the network.")] = None,
    page: Annotated[bool | None, Option("--page/--no-page", help="Serve the page for browsers.")] = None,
    auth: Annotated[str | None, Option(help="on, or off to let everybody in.")] = None,
    allow_public: Annotated[bool | None, Option("--allow-public", help="Answer the whole internet.")] = None,
    settings_file: Annotated[Path | None, Option("--settings", help="A TOML file of settings.")] = None,
    log: Annotated[str | None, Option(help="text or json.")] = None,
    plain: Annotated[bool | None, Option("--plain", help="Plain lines on a terminal too, no live view.")] = None,
    admission: Annotated[str | None, Option(help="mutex (refuse when busy) or queue.")] = None,
    max_queue: Annotated[int | None, Option(help="Running and waiting requests at most.")] = None,
    room: Annotated[
        str | None, Option(help="Open a room that others join: a code, or nothing for this folder's own.")
    ] = None,
    concurrency: Annotated[
        int | None, Option(help="Requests that an upstream or a Ray cluster answers at once.")
    ] = None,
    ray_address: Annotated[str | None, Option(help="The address of a Ray cluster; this machine without.")] = None,
    ray_replicas: Annotated[int | None, Option(help="Copies of the engine in the Ray cluster.")] = None,
    strict: Annotated[str | None, Option(help="on refuses what cannot be done as asked.")] = None,
    switching: Annotated[
        bool | None, Option("--switching/--no-switching", help="Load any installed model on request.")
    ] = None,
    speed: Annotated[str | None, Option(help="Simulator: a factor, or max for no delays.")] = None,
    seed: Annotated[int | None, Option(help="Simulator: the seed of its replies.")] = None,
    reply: Annotated[str | None, Option(help="Simulator: prose or echo.")] = None,
    device: Annotated[str | None, Option(help="Simulator: a device, such as iphone-15-pro.")] = None,
    scenario: Annotated[str | None, Option(help="Simulator: a scenario's name, or the path of a TOML file.")] = None,
    record: Annotated[str | None, Option(help="Write every exchange into this folder.")] = None,
    replay: Annotated[str | None, Option(help="Simulator: answer from the recordings of this folder.")] = None,
    replay_fallback: Annotated[
        bool | None, Option("--replay-fallback", help="Let rules answer what was not recorded.")
    ] = None,
    home: Annotated[str | None, Option(help="The folder for keys, models and caches.")] = None,
    ready_json: Annotated[str | None, Option(help="Write one JSON line when ready: a file, or -.")] = None,
    exit_on_stdin_close: Annotated[bool | None, Option("--exit-on-stdin-close", help="End with the parent.")] = None,
) -> None:
    """Serve a model on the local network until Ctrl-C.

    Ctrl-\\ cancels the generation that is running. A second Ctrl-C ends at once.
    """
    flags: dict[str, object] = {
        key: value for key, value in ctx.params.items() if value is not None and key != "settings_file"
    }
    if ctx.parent is not None and ctx.parent.info_name == "sim":
        flags.setdefault("engine", "sim")
    if flags.get("upstream"):
        flags.setdefault("engine", "upstream")
    effective = settings.load(flags=flags, file=settings_file)

    from pocketserver.cli.serving import run  # everything heavy comes in here

    run(effective)
