"""`pocketserver`: the commands, and how an explained failure ends."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pocketserver import __version__
from pocketserver.cli.examples import epilog
from pocketserver.errors import StartupError, UsageError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("serve:serve", "Serve a model on the local network until Ctrl-C."),
    "sim": ("sim:app", "The simulator: the same server on a scripted engine."),
    "status": ("servers:status", "Show what a running server is doing."),
    "stop": ("servers:stop", "Cancel the generation that a running server is working on."),
    "join": ("join:join", "Join a room: serve the model of another machine on this one."),
    "cluster": ("cluster:app", "The engine as replicas in a Ray cluster: deploy them, remove them."),
    "room": ("room:app", "The room of a running server: guests, kick, stop, close."),
    "models": ("models:app", "Models on this machine: list, fetch and remove them."),
    "key": ("key:app", "API keys: show the main one, make named ones, list and revoke them."),
    "page": ("page:page", "Print a link that opens a running server's page as its owner."),
    "pair": ("pair:pair", "Show a code that gives one device a key of its own."),
    "qr": ("qr:qr", "Show a running server's address as a QR code."),
    "discover": ("discover:discover", "List the servers that announce themselves on this network."),
    "cache": ("cache:app", "Conversations kept on disk: show what there is, or clear them."),
    "tune": ("tune:tune", "Show how a model runs best on this machine; measures it where that is to be done."),
    "chat": ("chat:chat", "Talk to a model: of this machine, of the network, of any OpenAI-compatible server."),
    "doctor": ("doctor.command:doctor", "Find out what keeps the server, or devices around it, from working."),
    "bench": ("bench:bench", "Measure how fast a running server is; any OpenAI-compatible one."),
    "calibrate": ("calibrate:calibrate", "Measure a real server and write it down as a device for the simulator."),
    "openapi": ("openapi:openapi", "Print the API of a profile as an OpenAPI document."),
    "settings": ("servers:settings", "Show every setting with its value and where it comes from."),
}
"""Name, where the command lies, its line in `--help`. A command's module is imported when it is called."""


class Commands(TyperGroup):
    """Finds commands in the table, so that `--help` imports none of them."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        found = getattr(importlib.import_module(f"pocketserver.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(rich_markup_mode=None, add_completion=False)
            single.command(cmd_name)(found)
            found = single
        return _with_examples(typer.main.get_command(found), cmd_name)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(
    name="pocketserver",
    cls=Commands,
    help="A small model server for phones and laptops on one Wi-Fi, and a device simulator for client developers.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _with_examples(command: Any, words: str) -> Any:
    """The command, its own commands too, with examples below its help."""
    command.epilog = epilog(words)
    for name, inner in getattr(command, "commands", {}).items():
        _with_examples(inner, f"{words} {name}")
    return command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options that come before a command."""


def main() -> None:
    """Run a command. Explained failures are one line on standard error: exit 1, or 2 for a wrong argument."""
    try:
        app(args=with_own_room(sys.argv[1:]))
    except UsageError as error:
        _end(error, 2)
    except StartupError as error:
        _end(error, 1)


def with_own_room(arguments: Sequence[str]) -> list[str]:
    """`--room` may stand alone, which options of typer cannot: it then means this folder's own room."""
    followers = [*arguments[1:], "-"]
    return [
        "--room=auto" if word == "--room" and follower.startswith("-") else word
        for word, follower in zip(arguments, followers, strict=False)
    ]


def _end(error: StartupError, code: int) -> None:
    print(f"pocketserver: {error}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
