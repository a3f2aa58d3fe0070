"""`pocketserver doctor`: runs every check, prints what it found, and what to do."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pocketserver import settings as settings_module
from pocketserver.cli.doctor import building, discovery, firewall, machine, network
from pocketserver.cli.doctor.finding import Check, Finding, Level, Situation, examine, situation
from pocketserver.errors import UsageError

CHECKS: Mapping[str, Check] = {
    "settings": machine.settings_hold,
    "python": machine.python_fits,
    "clock": machine.clock_is_sane,
    "servers": machine.servers_answer,
    "port": network.port_is_free,
    "addresses": network.addresses_are_told,
    "vpn": network.no_vpn_in_the_way,
    "firewall": firewall.port_is_open,
    "isolation": network.devices_are_not_kept_apart,
    "mdns": discovery.announcements_are_heard,
    "responders": discovery.responders,
    "keys": machine.keys_are_private,
    "disk": machine.disk_has_room,
    "memory": machine.memory_suffices,
    "models": machine.models_are_sound,
    "compiler": building.compiler_is_there,
    "llama.cpp": building.llama_works,
}
"""Every check, in the order in which its findings are shown."""

_COLOURS = {Level.OK: "green", Level.HINT: "blue", Level.WARNING: "yellow", Level.BROKEN: "red"}


def doctor(
    profile: Annotated[str | None, typer.Option(help="Which product would be served.")] = None,
    engine: Annotated[str | None, typer.Option(help="llama, sim, upstream or ray.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that would be served.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    file: Annotated[Path | None, typer.Option("--settings", help="A TOML file of settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find out what keeps a server, or the devices around it, from working, and say what to do.

    Looks at what `serve` would do with the same options. Changes nothing. Exits with 1 when something is broken.
    """
    flags: dict[str, object] = {"profile": profile, "engine": engine, "model": model, "host": host, "port": port}
    findings = examine(CHECKS, _situation(flags, file))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        show(findings)
    if any(finding.level is Level.BROKEN for finding in findings):
        raise typer.Exit(1)


def _situation(flags: Mapping[str, object], file: Path | None) -> Situation:
    """What would be served; with the usual settings where those given cannot be."""
    given = {key: value for key, value in flags.items() if value is not None}
    problems: list[str] = []
    try:
        effective = settings_module.load(flags=given, file=file)
    except UsageError as error:
        problems.append(str(error))
        home = {"POCKETSERVER_HOME": os.environ.get("POCKETSERVER_HOME", "")}
        effective = settings_module.load(flags={}, environment=home, file=Path(os.devnull))
    from_profile = effective.origins["port"].startswith("profile")
    moves = effective.profile.moves_when_taken and from_profile
    return situation(effective.settings, moves_when_taken=moves, problems=problems)


def show(findings: Sequence[Finding]) -> None:
    """One line a finding, the remedy below it."""
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for finding in findings:
        mark = f"{finding.level.value:8}"
        mark = typer.style(mark, fg=_COLOURS[finding.level]) if coloured else mark
        typer.echo(f"{mark} {finding.name:11} {finding.sentence}")
        if finding.remedy:
            typer.echo(f"{'':20} → {finding.remedy}")
    number = sum(finding.level is Level.BROKEN for finding in findings)
    typer.echo(f"\n{number or 'Nothing'} {'is' if number <= 1 else 'are'} broken.")
