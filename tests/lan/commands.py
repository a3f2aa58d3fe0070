"""The `discover` command alone, run as the whole command line runs it."""

import sys

import typer

from pocketserver.cli.discover import discover
from pocketserver.errors import StartupError

app = typer.Typer(pretty_exceptions_enable=False)
app.command("discover")(discover)


@app.callback()
def callback() -> None:
    """Makes `discover` a subcommand."""


if __name__ == "__main__":
    try:
        app()
    except StartupError as error:
        print(f"pocketserver: {error}", file=sys.stderr)
        sys.exit(1)
