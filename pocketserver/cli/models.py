"""`pocketserver models`: what is installed, what can be fetched, and making, copying, showing, removing models."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Self, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from pocketserver import settings
from pocketserver.errors import Refusal, StartupError
from pocketserver.models.catalog import Catalog, CatalogEntry, load_catalog
from pocketserver.models.download import Patience
from pocketserver.models.library import CreateSpec, DiskLibrary, ShownModel
from pocketserver.models.modelfile import MAX_MODELFILE_CHARACTERS, ModelfileFault, parse_modelfile
from pocketserver.models.names import key_of
from pocketserver.models.progress import Progress, Stage
from pocketserver.models.pull import PullMeans
from pocketserver.models.pull import pull as pull_model
from pocketserver.models.store import InstalledModel, ModelStore, open_store

app = typer.Typer(
    help="Models on this machine: list, fetch, make, copy, show and remove them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Home = Annotated[str | None, typer.Option(help="The folder for keys, models and caches.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="The name of an installed model.")]
_Result = TypeVar("_Result")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. `state` is `installed`, `broken` (`problem` says why) or `available` (to be pulled)."""

    id: str
    state: str
    default: bool
    size_bytes: int
    quantization: str | None = None
    architecture: str | None = None
    parameters: int | None = None
    context_length: int | None = None
    license: str | None = None
    path: str | None = None
    problem: str | None = None


@app.command("list")
def list_models(*, home: Home = None, as_json: Json = False) -> None:
    """List installed models, and those that can be fetched."""
    chosen = _settings(home)
    catalog, installed = _catalog(chosen), _store(chosen).list()
    keys = {model.key for model in installed}
    rows = [_installed(model, catalog) for model in installed]
    rows += [_available(entry) for entry in catalog.entries.values() if key_of(entry.name) not in keys]
    if as_json:
        _print_json({"models": rows})
    else:
        _print_table(rows)


@app.command()
def pull(
    name: Annotated[str | None, typer.Argument(help="A name of the list; the default model when left out.")] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Fetch a model of the catalogue; quick when it is there already."""
    chosen = _settings(home)
    catalog = _catalog(chosen)
    entry = catalog.default if name is None else catalog.find(name)
    if entry is None:
        raise StartupError(f"The catalogue has no model {name!a}. It has {', '.join(catalog.entries)}.")
    fetched = asyncio.run(_pull(entry, _store(chosen), _means(chosen)))
    if as_json:
        _print_json({"id": entry.name, "path": str(fetched), "size_bytes": entry.size_bytes})
    else:
        print(f"{entry.name} is in {fetched}", file=sys.stderr)


@app.command()
def rm(name: Name, *, home: Home = None) -> None:
    """Remove an installed model from the disk; weights that another name uses stay."""
    model = _store(_settings(home)).remove(name)
    print(f"Removed {model.id}, {_megabytes(model.size_bytes)}.", file=sys.stderr)


@app.command()
def cp(
    source: Name,
    destination: Annotated[str, typer.Argument(help="The second name.")],
    *,
    home: Home = None,
) -> None:
    """Give an installed model a second name; the weights are linked, not copied."""
    _run(lambda library: library.copy(source, destination), home)
    print(f"{destination} is {source} under another name.", file=sys.stderr)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The new model's name.")],
    *,
    file: Annotated[Path, typer.Option("--file", "-f", help="The Modelfile.")] = Path("Modelfile"),
    home: Home = None,
) -> None:
    """Make a model from a Modelfile: FROM an installed model or a GGUF file, with SYSTEM, PARAMETER and so on."""
    text = _read(file)
    spec = CreateSpec(name=name, base=_base_of(text, file), modelfile=text)
    _run(lambda library: _create(library, spec), home)
    print(f"{name} is made.", file=sys.stderr)


@app.command()
def show(
    name: Name,
    *,
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Print the Modelfile that makes it again.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show what an installed model is: its size, its options, and what its name adds to the weights."""
    shown = _run(lambda library: library.show(name), home)
    if modelfile:
        sys.stdout.write(shown.modelfile)
    elif as_json:
        _print_json(shown)
    else:
        _print_facts(shown)


@app.command()
def path(name: Name, *, home: Home = None) -> None:
    """Print where an installed model's weights lie."""
    model = _store(_settings(home)).find(name)
    if model is None:
        raise StartupError(f"There is no model {name!a}. See `pocketserver models list`.")
    print(model.path)


def _settings(home: str | None) -> settings.Settings:
    return settings.load(flags={} if home is None else {"home": home}).settings


def _store(chosen: settings.Settings) -> ModelStore:
    return open_store(chosen.home_folder, model_folders=chosen.model_folders, ollama=chosen.ollama_folder)


def _catalog(chosen: settings.Settings) -> Catalog:
    return load_catalog(chosen.home_folder / "catalog.toml")


def _means(chosen: settings.Settings) -> PullMeans:
    return PullMeans(patience=Patience(stall_seconds=chosen.pull_stall_seconds))


def _run(ask: Callable[[DiskLibrary], Coroutine[object, object, _Result]], home: str | None) -> _Result:
    """Ask the library; a refusal ends the command with its sentence."""
    chosen = _settings(home)
    library = DiskLibrary(_store(chosen), _catalog(chosen), means=_means(chosen))
    try:
        return asyncio.run(ask(library))
    except Refusal as refusal:
        raise StartupError(refusal.message) from refusal


async def _create(library: DiskLibrary, spec: CreateSpec) -> None:
    async with library.create(spec, local_files=True) as steps:
        async for step in steps:
            if step.status.startswith("warning: "):
                print(step.status, file=sys.stderr)


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_MODELFILE_CHARACTERS:
            raise StartupError(f"{file} is too large for a Modelfile.")
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise StartupError(f"The Modelfile {file} cannot be read: {error.strerror}. Name it with -f.") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"The Modelfile {file} is not UTF-8 text.") from error


def _base_of(text: str, file: Path) -> str | None:
    """A path in FROM counts from the Modelfile's own folder; None leaves FROM as it is."""
    try:
        base = parse_modelfile(text).base
    except ModelfileFault as fault:
        raise StartupError(f"{file}: {fault}.") from fault
    is_path = base.endswith(".gguf") or base.startswith((".", "~"))
    return str((file.parent / Path(base).expanduser()).resolve()) if is_path else None


async def _pull(entry: CatalogEntry, store: ModelStore, means: PullMeans) -> Path:
    with PullBar() as bar:
        return await pull_model(entry, store, bar.show, means)


class PullBar:
    """A progress bar on standard error; nothing when that is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._stage: Stage | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        if progress.stage is not self._stage:
            self._begin(progress.stage)
        assert self._task is not None
        self._bar.update(self._task, completed=progress.done_bytes, total=progress.total_bytes or None)

    def _begin(self, stage: Stage) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(_WORDS[stage])
        self._stage = stage


_WORDS = {
    Stage.WAITING: "Waiting for another pull",
    Stage.DOWNLOADING: "Downloading",
    Stage.UNPACKING: "Unpacking",
    Stage.VERIFYING: "Checking",
    Stage.STORING: "Storing",
    Stage.DONE: "Done",
}


def _installed(model: InstalledModel, catalog: Catalog) -> Row:
    entry, known, info = catalog.find(model.id), model.metadata, model.info()
    return Row(
        id=model.id,
        state="installed" if known else "broken",
        default=entry is catalog.default,
        size_bytes=model.size_bytes,
        quantization=info.quantization,
        architecture=info.architecture,
        parameters=info.parameters,
        context_length=info.context_size,
        license=entry.license if entry else None,
        path=str(model.path),
        problem=model.problem,
    )


def _available(entry: CatalogEntry) -> Row:
    return Row(
        id=entry.name,
        state="available",
        default=entry.default,
        size_bytes=entry.size_bytes,
        license=entry.license or None,
    )


def _print_table(rows: list[Row]) -> None:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200)  # a file or pipe has no width to fit into
    table = Table(box=None, pad_edge=False)
    for title in ("NAME", "STATE", "SIZE", "TYPE", "PARAMETERS", "CONTEXT"):
        table.add_column(title, overflow="fold", justify="left" if title in {"NAME", "STATE", "TYPE"} else "right")
    for row in rows:
        table.add_row(
            row.id + (" (default)" if row.default else ""),
            row.state,
            _megabytes(row.size_bytes),
            row.quantization or "",
            f"{row.parameters / 1e6:,.0f} M" if row.parameters else "",
            f"{row.context_length:,}" if row.context_length else "",
        )
    console.print(table)
    for row in rows:
        if row.problem:
            console.print(f"\n{row.problem}", soft_wrap=True)


def _print_facts(shown: ShownModel) -> None:
    model = shown.model
    facts = {
        "Name": model.name,
        "Architecture": model.details.family,
        "Parameters": model.details.parameter_size,
        "Type": model.details.quantization_level,
        "Context": f"{model.context_length:,} tokens" if model.context_length else "",
        "Size": _megabytes(model.size_bytes),
        "Made from": model.details.parent_model,
        "License": shown.license.strip().partition("\n")[0],
        "Options": shown.parameters,
        "System": shown.system,
        "Messages": str(len(model.settings.messages) or ""),
    }
    for title, text in facts.items():
        if text:
            print(f"{title:<13}" + text.replace("\n", "\n" + " " * 13))


def _print_json(document: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode() + "\n")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
