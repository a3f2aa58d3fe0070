"""`--help`, its examples, its speed, and the shell's completion."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pocketserver.cli.examples import EXAMPLES
from pocketserver.cli.main import COMMANDS, app

HEAVY = {
    "aiohttp",
    "zeroconf",
    "llama_cpp",
    "numpy",
    "prometheus_client",
    "rich.console",
    "psutil",
    "msgspec",
    "qrcode",
}
LIMIT_SECONDS = 0.3 * 20  # twenty times what it takes: only something heavy is that slow


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be typed, with the words that call it."""
    root = typer.main.get_command(app)
    for name in COMMANDS:
        yield from _with_inner(name, root.get_command(None, name))  # type: ignore[attr-defined]


def _with_inner(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _with_inner(f"{words} {name}", inner)


ALL = dict(commands())


@pytest.mark.parametrize("words", ALL)
def test_every_commands_help_has_an_example_of_itself(words: str) -> None:
    ran = CliRunner().invoke(app, [*words.split(), "--help"], terminal_width=200, prog_name="pocketserver")
    shown = re.split(r"Examples?:\n", ran.output)[-1]

    assert EXAMPLES[words]
    assert all(line in shown for line in EXAMPLES[words])
    assert all(re.search(rf"(^|\| )pocketserver {words}\b", line) for line in EXAMPLES[words])


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert set(EXAMPLES) == set(ALL)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_understood(line: str) -> None:
    """Parsed, not run: unknown options and missing arguments are refused there."""
    [words] = [part for part in line.split(" | ") if part.startswith("pocketserver ")]
    _name, first, *rest = shlex.split(words)
    command, context = ALL[first], None
    while True:
        context = command.make_context(first, list(rest), parent=context)
        inner = getattr(command, "commands", None)
        if not inner:
            return
        first, *rest = rest
        command = inner[first]


def test_help_imports_nothing_heavy() -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pocketserver.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS * 10,
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}

    assert HEAVY & imported == set()
    assert all(f"\n  {name} " in ran.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("pocketserver do", "doctor"), ("pocketserver serve --pla", "--plain"), ("pocketserver key re", "revoke")],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: str) -> None:
    environment = {
        "_POCKETSERVER_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'pocketserver'; from pocketserver.cli.main import app; app(prog_name='pocketserver')",
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert offered in ran.stdout.split()
