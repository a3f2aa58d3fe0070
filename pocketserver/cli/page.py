"""`pocketserver page`: a link that opens a running server's page as its owner's, once."""

import typer

from pocketserver.cli.servers import Json, Pid, Port, ask, chosen_server


def page(pid: Pid = None, port: Port = None, as_json: Json = False) -> None:
    """Print a link to a running server's page, with the owner's controls: keys, Stop, the model, pairing.

    The link is good once, within five minutes, on this machine. Everybody else opens the plain address.
    """
    shown = ask(chosen_server(pid, port), "POST", "/page/link")
    if as_json:
        import json

        typer.echo(json.dumps(shown))
        return
    typer.echo(shown["url"])
    typer.echo("Open it in a browser on this machine within five minutes; it works once.", err=True)
