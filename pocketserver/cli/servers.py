"""Commands for a running server on this machine: `stop`, `status`; and `settings`, which needs none."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from pocketserver import run_file
from pocketserver import settings as settings_module
from pocketserver.errors import StartupError, UsageError

Pid = Annotated[int | None, typer.Option(help="The server with this process id, when several run.")]
Port = Annotated[int | None, typer.Option(help="The server on this port, when several run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def stop(
    pid: Pid = None,
    port: Port = None,
    server: Annotated[bool, typer.Option("--server", help="End the whole server, not only its generation.")] = False,
) -> None:
    """Cancel the generation that a running server is working on; its client gets an error at once."""
    chosen = chosen_server(pid, port)
    if server:
        ask(chosen, "POST", "/shutdown")
        typer.echo(f"The server {chosen.pid} is shutting down.")
        return
    stopped = ask(chosen, "POST", "/stop")["stopped"]
    typer.echo("The running generation was cancelled." if stopped else "Nothing was being generated.")


def status(pid: Pid = None, port: Port = None, as_json: Json = False) -> None:
    """Show what a running server is doing."""
    shown = ask(chosen_server(pid, port), "GET", "/status")
    if as_json:
        typer.echo(json.dumps(shown))
        return
    for key, value in shown.items():
        typer.echo(f"{key:16} {'-' if value is None else value}")


def settings(
    profile: Annotated[str | None, typer.Option(help="Show this profile's.")] = None,
    file: Annotated[Path | None, typer.Option("--settings", help="A TOML file of settings.")] = None,
    as_json: Json = False,
) -> None:
    """Show every setting with its value and where it comes from; keys are never shown."""
    rows = settings_module.shown(settings_module.load(flags={"profile": profile}, file=file))
    if as_json:
        typer.echo(json.dumps([{"key": key, "value": value, "from": origin} for key, value, origin in rows]))
        return
    for key, value, origin in rows:
        typer.echo(f"{key:24} {value:32} {origin}")


def chosen_server(pid: int | None, port: int | None) -> run_file.RunningServer:
    home = settings_module.load(flags={}).settings.home_folder
    return run_file.choose(home / "run", pid=pid, port=port)


def ask(server: run_file.RunningServer, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask a running server's control listener. Raises UsageError with its sentence when it refuses the words."""
    request = urllib.request.Request(  # noqa: S310 - our own loopback listener
        server.control_url + path,
        method=method,
        headers={"Authorization": f"Bearer {server.control_token}"},
        data=None if body is None else json.dumps(body).encode(),
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise UsageError(_sentence(error)) from error
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise StartupError(f"The server {server.pid} does not answer on {server.control_url}: {error}.") from error


def _sentence(error: urllib.error.HTTPError) -> str:
    """The control listener's own words, where it said any."""
    with error:
        try:
            return str(json.load(error)["error"])
        except (ValueError, KeyError, TypeError):
            return f"The server refused that ({error.code})."
