"""`pocketserver chat`: talk to a model, of this machine, of the network, or of any OpenAI-compatible server."""

import asyncio
import getpass
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pocketserver import settings as settings_module
from pocketserver.cli.chat_client import ChatClient, ChatFault, WrongKey, chat_client
from pocketserver.cli.chat_screen import PlainOutput, Transcript, talk, told
from pocketserver.cli.chat_target import Target, find_target
from pocketserver.cli.servers import Pid, Port
from pocketserver.errors import StartupError, UsageError

_MOST_QUESTION_CHARACTERS = 4 << 20
_KEY_ATTEMPTS = 3


def chat(
    url: Annotated[
        str | None, typer.Argument(help="A server's base URL; this machine's, or one of the network, if left out.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Ask this, print the answer, end.")] = None,
    model: Annotated[str | None, typer.Option(help="A model of the server; the loaded one if left out.")] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    pid: Pid = None,
    port: Port = None,
) -> None:
    """Talk to a model. With --message, or a question on standard input, only the answer is printed.

    The key is taken from POCKETSERVER_API_KEY or asked for; for this machine's own server it is found by itself.
    """
    interactive = message is None and sys.stdin.isatty() and sys.stdout.isatty()
    question = "" if interactive else _question(message)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    current = settings_module.load(flags={}).settings
    target = find_target(current, url, pid=pid, port=port, choose_one=_chosen if asks else None)
    with asyncio.Runner() as runner:
        try:
            _run(runner, target, Transcript(model=model or "", system=system), question, asks=asks)
        except ChatFault as fault:
            raise StartupError(_with_remedy(fault)) from fault
        except BrokenPipeError:  # the reader of our output has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _run(runner: asyncio.Runner, target: Target, transcript: Transcript, question: str, *, asks: bool) -> None:
    opened = chat_client(target.base_url, target.key)
    client = runner.run(opened.__aenter__())
    try:
        models = _let_in(runner, client, asks=asks)
        transcript.choose(models, client.base_url)
        if question:
            transcript.ask(question)
            runner.run(told(client, transcript, PlainOutput()))
        else:
            talk(runner, client, transcript, models)
    finally:
        runner.run(opened.__aexit__(None, None, None))


def _let_in(runner: asyncio.Runner, client: ChatClient, *, asks: bool) -> list[str]:
    """The server's models; asks for a key, hidden, while it wants another one. Raises ChatFault."""
    for _ in range(_KEY_ATTEMPTS):
        try:
            return runner.run(client.models())
        except WrongKey as fault:
            if not asks:
                raise
            typer.echo(f"{fault}", err=True)
            client.key = _typed_key(client.base_url)
    return runner.run(client.models())


def _typed_key(base_url: str) -> str:
    while True:
        typed = getpass.getpass(f"API key for {base_url} (not shown): ").strip()
        if typed and typed.isascii() and typed.isprintable():
            return typed


def _with_remedy(fault: ChatFault) -> str:
    if isinstance(fault, WrongKey):
        return f"{fault} Set POCKETSERVER_API_KEY to a key of that server."
    return str(fault)


def _question(message: str | None) -> str:
    text = sys.stdin.read(_MOST_QUESTION_CHARACTERS) if message is None else message
    if not text.strip():
        raise UsageError("There is no question. Give one with --message, or on standard input.")
    return text


def _chosen(lines: Sequence[str]) -> int:
    """Let the person choose; Enter takes the first."""
    for number, line in enumerate(lines, 1):
        typer.echo(f"  {number}  {line}", err=True)
    while True:
        typer.echo("Which one? [1] ", err=True, nl=False)
        answer = sys.stdin.readline()
        if not answer:
            raise typer.Abort
        word = answer.strip() or "1"
        if word.isdecimal() and 1 <= int(word) <= len(lines):
            return int(word) - 1
