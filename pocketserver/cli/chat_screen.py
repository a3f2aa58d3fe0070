"""A conversation: what was said, how an answer comes to the screen, and the commands of a person who types."""

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pocketserver.cli.chat_client import Busy, ChatClient, ChatFault, End, Gone, Piece, WrongKey

BUSY_SECONDS = 600.0
"""How long a busy server is asked again."""
_LONGEST_PAUSE_SECONDS = 15.0
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What could act upon a terminal or reorder a line; line ends and tabs may stay."""
_HELP = """  /new             forget the conversation
  /system [TEXT]   show or set what the model is told first; `/system -` removes it
  /model [NAME]    show the models, or talk to another one
  /again           send the last question again
  /save FILE       write the conversation down, as JSON if the name ends in .json
  /quit            end, as Ctrl-D does
A backslash at a line's end goes on in the next line. Ctrl-C stops an answer."""


class Output(Protocol):
    """Where an answer goes as it comes."""

    def piece(self, piece: Piece) -> None: ...

    def waiting(self, sentence: str) -> None: ...

    def end(self, note: str) -> None: ...


@dataclass(slots=True)
class Transcript:
    """What was said so far."""

    model: str
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def choose(self, models: Sequence[str], base_url: str) -> None:
        """Take the server's model unless one was named. Raises ChatFault when it has none."""
        if not self.model and not models:
            raise ChatFault(f"{base_url} lists no model. Name one with --model.")
        self.model = self.model or models[0]

    def ask(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})

    def answered(self, text: str) -> None:
        """Keep an answer; without any text the question is taken back, so that roles alternate."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        elif self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def sent(self) -> list[dict[str, str]]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self.messages]

    def written(self, *, as_json: bool) -> str:
        if as_json:
            return json.dumps({"model": self.model, "messages": self.sent()}, ensure_ascii=False, indent=2) + "\n"
        return "\n\n".join(f"## {said['role']}\n\n{said['content']}" for said in self.sent()) + "\n"


async def told(client: ChatClient, transcript: Transcript, output: Output) -> None:
    """Get the answer to the last question and keep it, as far as it comes. Raises ChatFault.

    A busy server is asked again for ten minutes.
    """
    text: list[str] = []
    try:
        await _asked_until_free(client, transcript, output, text)
    finally:
        transcript.answered("".join(text))


async def _asked_until_free(client: ChatClient, transcript: Transcript, output: Output, text: list[str]) -> None:
    deadline = time.monotonic() + BUSY_SECONDS
    pause = 1.0
    while True:
        try:
            await _asked(client, transcript, output, text)
        except Busy as busy:
            if time.monotonic() > deadline:
                raise
            output.waiting(str(busy))
            told_pause = pause if busy.retry_after is None else busy.retry_after
            await asyncio.sleep(min(told_pause, _LONGEST_PAUSE_SECONDS))
            pause *= 2
        else:
            return


async def _asked(client: ChatClient, transcript: Transcript, output: Output, text: list[str]) -> None:
    started: float | None = None
    async with client.answer(transcript.model, transcript.sent()) as pieces:
        async for piece in pieces:
            if isinstance(piece, End):
                output.end(_figures(piece, started))
                return
            started = started or time.monotonic()
            output.piece(piece)
            if not piece.reasoning:
                text.append(piece.text)


def _figures(end: End, started: float | None) -> str:
    words = [] if end.reason in {"stop", None} else [f"ended by {end.reason}"]
    if end.completion_tokens is not None:
        words.append(f"{end.completion_tokens} tokens")
        seconds = 0.0 if started is None else time.monotonic() - started
        if end.completion_tokens > 1 and seconds > 0:
            words.append(f"{(end.completion_tokens - 1) / seconds:.1f} tokens/s")
    return ", ".join(words)


class PlainOutput:
    """The answer alone on standard output, for a program or a file; what else is to be said on standard error."""

    def __init__(self) -> None:
        self._told = False
        self._clean = sys.stdout.isatty()
        self._text = ""

    def piece(self, piece: Piece) -> None:
        if not piece.reasoning:
            self._text = piece.text
            _write(_harmless(piece.text) if self._clean else piece.text)

    def waiting(self, sentence: str) -> None:
        if not self._told:
            print(f"Waiting: {sentence}", file=sys.stderr, flush=True)
            self._told = True

    def end(self, note: str) -> None:
        del note
        if not self._text.endswith("\n"):
            _write("\n")


class TerminalOutput:
    """The answer for a person: thinking is dimmed, and figures follow."""

    def __init__(self, *, styled: bool) -> None:
        self._styled = styled
        self._reasoning = False
        self._told = False
        self._text = ""

    def piece(self, piece: Piece) -> None:
        if piece.reasoning != self._reasoning:
            self._turn(to_reasoning=piece.reasoning)
        text = piece.text if self._text else piece.text.lstrip("\n")
        self._text = text or self._text
        _write(_harmless(text))

    def waiting(self, sentence: str) -> None:
        if not self._told:
            self._note(f"busy: {sentence} It is asked again until it is free; Ctrl-C gives up.")
            self._told = True

    def end(self, note: str) -> None:
        self.stop()
        if note:
            self._note(note)

    def stop(self) -> None:
        """Whatever was written, go on at the beginning of a line in the usual style."""
        if self._reasoning:
            self._turn(to_reasoning=False)
        if self._text and not self._text.endswith("\n"):
            _write("\n")
        self._text = ""

    def _turn(self, *, to_reasoning: bool) -> None:
        if self._styled:
            _write("\x1b[2m" if to_reasoning else "\x1b[22m")
        elif to_reasoning:
            _write("(thinking) ")
        if not to_reasoning and self._text:
            _write("\n\n" if not self._text.endswith("\n") else "\n")
            self._text = ""
        self._reasoning = to_reasoning

    def _note(self, text: str) -> None:
        text = _harmless(text)
        _write(f"\x1b[2m{text}\x1b[22m\n" if self._styled else f"[{text}]\n")


class _Quit(Exception):  # noqa: N818 - the person's wish, not an error
    pass


def talk(runner: asyncio.Runner, client: ChatClient, transcript: Transcript, models: Sequence[str]) -> None:
    """Read questions and commands from the terminal until the person has had enough."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` its editing and history
    conversation = _Conversation(runner, client, transcript, models)
    print(f"{transcript.model} at {client.base_url}. /help lists the commands, Ctrl-D ends.")
    with contextlib.suppress(_Quit):
        while True:
            conversation.turn(_typed())


def _typed() -> str:
    """What the person types, over several lines when they end in a backslash. Raises _Quit at its end."""
    lines: list[str] = []
    while True:
        try:
            line = input("... " if lines else "> ")
        except EOFError:
            print()
            raise _Quit from None
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /quit ends)")
            lines = []
            continue
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


class _Conversation:
    """What a typed line does."""

    def __init__(
        self, runner: asyncio.Runner, client: ChatClient, transcript: Transcript, models: Sequence[str]
    ) -> None:
        self._runner = runner
        self._client = client
        self._transcript = transcript
        self._models = models
        self._last = ""
        self._styled = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/new": self._new,
            "/system": self._system,
            "/model": self._model,
            "/again": self._again,
            "/save": self._save,
            "/quit": self._quit,
            "/exit": self._quit,
            "/help": lambda _rest: print(_HELP),
        }

    def turn(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if not word:
            return
        command = self._commands.get(word)
        if command is not None:
            command(rest.strip())
        elif word.startswith("/") and "/" not in word[1:]:
            print(f"There is no command {word}. /help lists them.")
        else:
            self._ask(line)

    def _ask(self, question: str) -> None:
        """Ctrl-C ends the answer, not the conversation: what came of it stays."""
        self._last = question
        self._transcript.ask(question)
        output = TerminalOutput(styled=self._styled)
        try:
            self._runner.run(told(self._client, self._transcript, output))
        except KeyboardInterrupt:
            output.stop()
            print("(stopped)")
        except ChatFault as fault:
            output.stop()
            print(_harmless(f"{fault}{_advice(fault)}"))

    def _new(self, _rest: str) -> None:
        self._transcript.messages.clear()
        print("A new conversation.")

    def _system(self, rest: str) -> None:
        if rest:
            self._transcript.system = None if rest == "-" else rest
        print(f"System: {self._transcript.system or '(nothing)'}")

    def _model(self, rest: str) -> None:
        if rest:
            self._transcript.model = rest
        else:
            with contextlib.suppress(ChatFault):
                self._models = self._runner.run(self._client.models())
            for name in self._models:
                print(_harmless(f"{'*' if name == self._transcript.model else ' '} {name}"))
        print(_harmless(f"Model: {self._transcript.model}"))

    def _again(self, _rest: str) -> None:
        if self._last:
            self._ask(self._last)
        else:
            print("Nothing was asked yet.")

    def _save(self, rest: str) -> None:
        if not rest:
            print("Give the file's name: /save conversation.md")
            return
        path = Path(rest).expanduser()
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(self._transcript.written(as_json=path.suffix == ".json"))
        except FileExistsError:
            print(f"{path} exists already. Choose another name.")
        except OSError as error:
            print(f"{path} cannot be written: {error.strerror}.")
        else:
            print(f"Saved to {path}.")

    def _quit(self, _rest: str) -> None:
        raise _Quit


def _advice(fault: ChatFault) -> str:
    match fault:
        case WrongKey():
            return " The key was refused or revoked: start again with another POCKETSERVER_API_KEY."
        case Gone():
            return " /again sends your question once more."
        case Busy():
            return " It stays busy; /again sends your question once more."
        case _:
            return ""


def _harmless(text: str) -> str:
    """Foreign text without what could act upon the terminal."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
