"""`pocketserver`: the commands, and how an explained failure ends."""

import sys

import typer

from pocketserver import __version__
from pocketserver.cli import serve, servers
from pocketserver.errors import StartupError, UsageError

app = typer.Typer(
    name="pocketserver",
    help="A small model server for phones and laptops on one Wi-Fi, and a device simulator for client developers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
sim = typer.Typer(help="The simulator: the same server on a scripted engine.", no_args_is_help=True)

app.command("serve")(serve.serve)
sim.command("serve")(serve.serve)
app.add_typer(sim, name="sim")
app.command("stop")(servers.stop)
app.command("status")(servers.status)
app.command("settings")(servers.settings)


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and end.", is_eager=True),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run a command. Explained failures are one line on standard error: exit 1, or 2 for a wrong argument."""
    try:
        app()
    except UsageError as error:
        _end(error, 2)
    except StartupError as error:
        _end(error, 1)


def _end(error: StartupError, code: int) -> None:
    print(f"pocketserver: {error}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
