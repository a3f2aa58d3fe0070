"""`pocketserver room …`: the room of a running server, through its control listener."""

import json
from typing import Annotated

import typer

from pocketserver.cli.servers import Json, Pid, Port, ask, chosen_server
from pocketserver.lan.names import printable

app = typer.Typer(
    help="The room of a running server: guests, kick, stop, close.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Reason = Annotated[str, typer.Option(help="What guests are told.")]


@app.command()
def guests(pid: Pid = None, port: Port = None, as_json: Json = False) -> None:
    """List who is in the room, and whether they ask for something."""
    room = ask(chosen_server(pid, port), "GET", "/room")
    if as_json:
        typer.echo(json.dumps(room))
        return
    for guest in room["guests"]:
        line = f"{guest['name']:24} key {guest['key']:16} {guest['address']:16} {guest['seconds']:9.0f} s"
        typer.echo(printable(f"{line}  {guest['requests']} asked, {guest['served']} answered"))
    state = "open" if room["open"] else "closed"
    clients = "" if room["api_clients"] else "; API clients are off"
    typer.echo(f"Room {room['code']} is {state}{clients}; guests: {len(room['guests'])}.", err=True)


@app.command()
def kick(
    name: Annotated[str, typer.Argument(help="A guest's name, as `room guests` lists it.")],
    reason: Reason = "",
    pid: Pid = None,
    port: Port = None,
) -> None:
    """Disconnect a guest. Its key stays good: revoke it with `pocketserver key revoke` to keep it out."""
    ask(chosen_server(pid, port), "POST", "/room/kick", {"name": name, "reason": reason})
    typer.echo(printable(f"{name} was disconnected."))


@app.command()
def stop(pid: Pid = None, port: Port = None) -> None:
    """End what guests have asked for, running and waiting."""
    stopped = ask(chosen_server(pid, port), "POST", "/room/stop")["stopped"]
    typer.echo(f"Requests of guests that were ended: {stopped}.")


@app.command()
def close(reason: Reason = "", pid: Pid = None, port: Port = None) -> None:
    """Disconnect every guest and let nobody in until the server is started again."""
    ask(chosen_server(pid, port), "POST", "/room/close", {"reason": reason})
    typer.echo("The room is closed.")


@app.command()
def clients(
    allowed: Annotated[str, typer.Argument(help="on or off.", metavar="on|off")],
    reason: Reason = "",
    pid: Pid = None,
    port: Port = None,
) -> None:
    """Let the guests' API clients use the room, or keep them out while the guests stay."""
    if allowed not in ("on", "off"):
        raise typer.BadParameter("Write on or off.")
    ask(chosen_server(pid, port), "POST", "/room/clients", {"allowed": allowed == "on", "reason": reason})
    typer.echo(f"API clients are {allowed}.")
