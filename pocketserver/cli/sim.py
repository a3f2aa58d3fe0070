"""`pocketserver sim …`: the simulator's commands."""

import typer

from pocketserver.cli.serve import serve

app = typer.Typer(
    help="The simulator: the same server on a scripted engine.", no_args_is_help=True, rich_markup_mode=None
)
app.command("serve")(serve)


@app.callback()
def _group() -> None:
    """Keeps `serve` a command of its own while it is the only one."""
