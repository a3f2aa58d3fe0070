"""`pocketserver tune`: how fast a model runs on this machine in each way that was measured, and which is used."""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from pocketserver import settings
from pocketserver.assembly import llama_options, prepare_model
from pocketserver.cli import banner
from pocketserver.engines.llama import blas_library, build_flags
from pocketserver.engines.llama.process import LlamaEngine, Tuned
from pocketserver.engines.llama.tuning import TOO_BUSY, Question, Row
from pocketserver.errors import Refusal, StartupError

_TITLES = {
    Question.THREADS: "threads",
    Question.FORMAT: "cache",
    Question.MICRO_BATCH: "micro-batch",
    Question.BLAS: "BLAS",
}
_POLL_SECONDS = 0.2
_EXPLANATION = """
Rates are tokens a second, with an empty context and with one of some 750 tokens. A turn is 500 new prompt tokens and
100 generated ones behind a filled context. The fastest turn wins; a cache format whose results do not depend on how
tokens are batched ("exact": the same seed then gives the same answer, cached or not) may be up to 5 % slower. Other
numbers of threads and other micro-batches than the usual must gain 5 %, reading prompts through BLAS 10 %. What is set
by hand always holds: --threads, --kv-type, --flash-attention, and the settings threads_batch, micro_batch, blas and
speculation."""


def tune(
    model: Annotated[str | None, typer.Option(help="An installed model's name, or the path of a GGUF file.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the choice is made.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure even if that was done before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    home: Annotated[str | None, typer.Option(help="The folder for keys, models and caches.")] = None,
) -> None:
    """Measure how a model runs best on this machine, or show what was measured, and what is used.

    A server does the same by itself at the first load of a model.
    """
    flags = {"model": model, "home": home}
    effective = settings.load(flags={key: value for key, value in flags.items() if value is not None})
    tuned = asyncio.run(_tuned(effective.settings, again=again))
    machine = build_flags.this_machine()
    advice = build_flags.advice(tuned.build, machine)
    command = build_flags.rebuild_command(machine, tuned.version.split()[0]) if advice else None
    if as_json:
        typer.echo(json.dumps(document(tuned, advice, command)))
        return
    show(tuned)
    if explain:
        typer.echo(_EXPLANATION)
    if blas_library.is_possible() and blas_library.installed() is None:
        build = f'"{sys.executable}" -m {blas_library.__name__}'
        typer.echo(f"\nPrompts might be read faster through BLAS. Build its backend, which takes seconds:\n  {build}")
    if command:
        typer.echo(f"\nAnother build of llama.cpp would suit this processor better. {' '.join(advice)}\nBuild it with:")
        typer.echo(f"  {command}")


async def _tuned(chosen: settings.Settings, *, again: bool) -> Tuned:
    """Load the model as a server would, measuring it where that is to be done. Raises StartupError."""
    found = await prepare_model(msgspec.structs.replace(chosen, engine="llama"), banner.fetch_progress)
    assert found is not None
    options = llama_options(msgspec.structs.replace(chosen, tuning="auto"), found, tune_again=again)
    engine = LlamaEngine(options)
    try:
        await engine.start()
        following = asyncio.create_task(_follow(engine))
        try:
            await engine.loaded()
        finally:
            following.cancel()
        found_out = engine.tuned
    except Refusal as refusal:
        raise StartupError(refusal.message) from refusal
    finally:
        await engine.close()
    assert found_out is not None, "a loaded engine with tuning has measured"
    return found_out


async def _follow(engine: LlamaEngine) -> None:
    while True:
        done = engine.status.tuning_progress
        if done is not None:
            banner.progress("Measuring, once   ", min(done, 0.99))
        await asyncio.sleep(_POLL_SECONDS)


def document(tuned: Tuned, advice: Sequence[str], command: str | None) -> object:
    rows = [msgspec.to_builtins(row) | {"turn_seconds": row.turn_seconds} for row in tuned.record.rows]
    record = msgspec.to_builtins(tuned.record) | {"rows": rows}
    choice = {
        "runtime": msgspec.to_builtins(tuned.choice.runtime),
        "drafts": msgspec.to_builtins(tuned.choice.drafts),
        "batch_invariant": tuned.choice.batch_invariant,
    }
    build = {"version": tuned.version, "features": tuned.build, "advice": list(advice), "rebuild": command}
    return {"choice": choice, "build": build, "measured": record}


def show(tuned: Tuned) -> None:
    record, choice = tuned.record, tuned.choice
    if record.rows:
        Console(width=None if Console().is_terminal else 140).print(_table(record.rows))
    else:
        typer.echo("Nothing was measured: measuring ended the model process. The usual values are used.")
    drafts = f"drafts of up to {choice.drafts.tokens} tokens" if choice.drafts.tokens else "no drafts, they do not pay"
    typer.echo(f"Used: {choice.runtime}; {drafts}.")
    typer.echo(f"llama.cpp {tuned.version}: {tuned.build}")
    if record.busy >= TOO_BUSY:
        typer.echo(f"Other programs used {record.busy:.0%} of the machine meanwhile; measure again with --again.")
    if not record.is_settled:
        typer.echo("Until then the usual values are used, and the next starts of a server measure again.")


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("measured", "threads", "cache", "flash", "batch"):
        table.add_column(title)
    for title in ("prompt/s", "filled", "generated/s", "filled", "a turn", "exact"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    runtime, is_format = row.runtime, row.question is Question.FORMAT
    exact = {True: "yes", False: "no", None: ""}[row.batch_invariant]
    filled = [_rate(row.prompt_filled), _rate(row.generate_empty), _rate(row.generate_filled)]
    if not is_format:
        filled = ["", _rate(row.generate_empty), ""]
    return [
        f"{_TITLES[row.question]}{' used' if runtime.blas else ''}",
        f"{runtime.threads}/{runtime.threads_batch}",
        runtime.kv_type,
        runtime.flash_attention,
        str(runtime.micro_batch),
        _rate(row.prompt_empty),
        *filled,
        f"{row.turn_seconds:.2f} s" if is_format else "",
        exact,
    ]


def _rate(seconds: float) -> str:
    return f"{1 / seconds:.0f}" if seconds > 0 else ""
