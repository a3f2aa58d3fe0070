"""`pocketserver sim …`: the simulator's commands, thin over the control listener of a running one."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pocketserver.cli.serve import serve
from pocketserver.cli.servers import Json, Pid, Port, ask, chosen_server
from pocketserver.errors import StartupError, UsageError

app = typer.Typer(
    add_completion=False,
    help="The simulator: the same server on a scripted engine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("serve")(serve)
Words = Annotated[list[str], typer.Argument(help="NAME=VALUE pairs; values are JSON or plain words.")]
_NUMBER_OF_REQUESTS = 20


@app.command()
def status(pid: Pid = None, port: Port = None, as_json: Json = False) -> None:
    """Show the simulated device."""
    _show(_ask(pid, port, "GET", "/state"), as_json=as_json)


@app.command("set")
def set_state(words: Words, pid: Pid = None, port: Port = None, as_json: Json = False) -> None:
    """Change the device: `sim set thermal=serious low_power=true network=gone`."""
    _show(_ask(pid, port, "PATCH", "/state", _pairs(words)), as_json=as_json)


@app.command()
def fault(
    name: Annotated[str, typer.Argument(help="A name from `sim faults`.")],
    words: Annotated[list[str] | None, typer.Argument(help="seconds=2 after_tokens=5 retry_after=1 …")] = None,
    next_: Annotated[int | None, typer.Option("--next", help="Strike so many requests.")] = None,
    every: Annotated[int | None, typer.Option(help="Strike every n-th request.")] = None,
    probability: Annotated[float | None, typer.Option(help="Strike with this probability, by the seed.")] = None,
    match: Annotated[str | None, typer.Option(help='Strike what matches, as JSON: {"path": "/v1/models"}.')] = None,
    pid: Pid = None,
    port: Port = None,
) -> None:
    """Let a fault strike: `sim fault model_busy`, `sim fault drop_after_tokens after_tokens=5 --every 3`."""
    when = {
        "next": next_,
        "every": every,
        "probability": probability,
        "match": None if match is None else _value(match),
    }
    asked: dict[str, Any] = {"fault": name, **_pairs(words or [])}
    if any(value is not None for value in when.values()):
        asked["when"] = {key: value for key, value in when.items() if value is not None}
    typer.echo(_ask(pid, port, "POST", "/faults", asked)["id"])


@app.command()
def rule(
    reply: Annotated[str, typer.Argument(help='The text to say, or a reply as JSON: {"tool_calls": […]}.')],
    last_message: Annotated[str | None, typer.Option(help="Only where the last message contains this.")] = None,
    regex: Annotated[str | None, typer.Option(help="Only where this is found in the last message.")] = None,
    times: Annotated[int | None, typer.Option(help="Hold for so many answers.")] = None,
    pid: Pid = None,
    port: Port = None,
) -> None:
    """Answer with this: `sim rule "Hello!" --times 1`."""
    given = _value(reply)
    match = {"last_message": last_message, "regex": regex}
    asked: dict[str, Any] = {
        "reply": given if isinstance(given, dict) else {"text": reply},
        "match": {key: value for key, value in match.items() if value is not None},
    }
    if times is not None:
        asked["times"] = times
    typer.echo(_ask(pid, port, "POST", "/rules", asked)["id"])


@app.command()
def requests(
    last: Annotated[int, typer.Option(help="How many.")] = _NUMBER_OF_REQUESTS,
    pid: Pid = None,
    port: Port = None,
    as_json: Json = False,
) -> None:
    """List what clients sent, keys hidden."""
    found = _ask(pid, port, "GET", f"/requests?last={max(0, last)}")["requests"]
    if as_json:
        typer.echo(json.dumps(found))
        return
    for one in found:
        what = one["fault"] or one["error"] or ""
        status = one["status"] or "…"
        typer.echo(f"{one['arrived']:10.3f} s  {one['method']:6} {one['path']:30} {status}  {what}".rstrip())


@app.command()
def reset(pid: Pid = None, port: Port = None) -> None:
    """Put the device back to its beginning: no rules, faults or captured requests."""
    _ask(pid, port, "POST", "/reset")
    typer.echo("The simulator was reset.")


@app.command()
def advance(
    seconds: Annotated[float, typer.Argument(help="Device seconds.")], pid: Pid = None, port: Port = None
) -> None:
    """Let device time pass at once. With `--speed max` nothing else moves it while the device cannot be reached."""
    typer.echo(f"{_ask(pid, port, 'POST', '/advance', {'seconds': seconds})['seconds']:g} s")


@app.command()
def play(
    scenario: Annotated[str, typer.Argument(help="A shipped scenario's name, or the path of a TOML file.")],
    pid: Pid = None,
    port: Port = None,
) -> None:
    """Begin a scenario on a running device."""
    from pocketserver.simulator.scenario import load_scenario

    path = Path(scenario)
    loaded = load_scenario(scenario)  # here, so that a mistake is told with its file and line
    sent = {"toml": path.read_text(encoding="utf-8")} if path.is_file() else {"name": scenario}
    _ask(pid, port, "POST", "/scenario", sent)
    typer.echo(loaded.summary)


@app.command()
def faults(as_json: Json = False) -> None:
    """List every fault that the simulator can provoke."""
    from pocketserver.simulator.faults import FAULTS

    if as_json:
        typer.echo(json.dumps({name: kind.summary for name, kind in FAULTS.items()}))
        return
    for name, kind in FAULTS.items():
        typer.echo(f"{name:26} {kind.summary}")


@app.command()
def scenarios() -> None:
    """List the scenarios that are shipped."""
    from pocketserver.simulator.scenario import load_scenario, scenario_names

    for name in scenario_names():
        typer.echo(f"{name:26} {load_scenario(name).summary}")


@app.command()
def devices() -> None:
    """List the devices that are shipped."""
    from pocketserver.simulator.presets import load_preset, preset_names

    for name in preset_names():
        typer.echo(f"{name:26} {load_preset(name).summary}")


@app.command()
def report(pid: Pid = None, port: Port = None, as_json: Json = False) -> None:
    """Tell what clients did wrong with the faults they met; exit 1 when there was something."""
    verdict = _ask(pid, port, "GET", "/verdict")
    if as_json:
        typer.echo(json.dumps(verdict))
    else:
        typer.echo(f"{verdict['requests']} requests, {verdict['faulty']} met a fault or an error.")
        for finding in verdict["findings"]:
            typer.echo(f"{finding['mistake']:20} {finding['sentence']} ({finding['request']}, {finding['shown_by']})")
    if not verdict["resilient"]:
        raise typer.Exit(1)


def _ask(
    pid: int | None, port: int | None, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    server = chosen_server(pid, port)
    if server.engine != "sim":
        raise StartupError(f"The server {server.pid} is no simulator. Start one with `pocketserver sim serve`.")
    return ask(server, method, path, body)


def _pairs(words: list[str]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words]
    wrong = [name for name, sign, _ in pairs if not sign or not re.fullmatch(r"\w+", name)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} cannot be. Write NAME=VALUE, as in thermal=serious.")
    return {name: _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(state: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(state))
        return
    for key, value in state.items():
        typer.echo(
            f"{key:24} {'-' if value is None else json.dumps(value) if isinstance(value, list | dict) else value}"
        )
