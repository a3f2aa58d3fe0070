"""Every code block and link of README, docs/ and the examples' README: commands and their flags exist, data and code parse.

What can run does so in the tests beside this one (test_readme, and test_documentation of each part); this one leaves none out.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main
import yaml

from pocketserver.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?<![\w./-])(?:pocketserver|make) [^|)\n`]*")
CHECKED_ELSEWHERE = {"", "promql"}
"""Output, diagrams and wire examples; queries, which promtool reads."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield text


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `pocketserver …` and `make …` in the shell blocks."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for found in COMMAND.findall(line.split(" #")[0]):
                yield shlex.split(found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    languages = {language for language, _ in BLOCK.findall(page.read_text(encoding="utf-8"))}

    assert languages <= {"sh", "python", "toml", "yaml", "json"} | CHECKED_ELSEWHERE


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_their_flags_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *words in commands(page):
        if program == "make":
            assert words[0] in targets, words
        else:
            check_command(words)


def check_command(words: list[str]) -> None:
    """Walk the words down to a command, and look at its flags; other words are arguments."""
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command)
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in flags(command, context), f"{shlex.join(words)}: there is no {word}"
        elif hasattr(command, "get_command"):
            inner = command.get_command(context, word)
            assert inner is not None, f"{shlex.join(words)}: there is no command {word}"
            command, context = inner, click.Context(inner, parent=context)


def flags(command: click.Command, context: click.Context) -> set[str]:
    parameters = command.get_params(context)
    return {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_and_data_parse(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)
    for text in blocks(page, "toml"):
        tomllib.loads(text)
    for text in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(text), dict)
    for text in blocks(page, "json"):
        json.loads(text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        path, _, place = "".join(link).partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if place:
            heads = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert place in anchors, f"{path}#{place}"


def test_every_page_of_docs_is_linked() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for page in (ROOT / "docs").glob("*.md"):
        assert f"{page.name})" in text or f"{page.name}#" in text, page.name


def test_the_programs_settings_are_those_that_were_tried() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    tried = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("agents", "langchain", "litellm")
        for file in (ROOT / "tests" / "apps" / folder).glob("*.py")
    )
    claude, codex, langchain, litellm = (
        page.split(f"## {program}\n")[1].split("\n## ")[0]
        for program in ("Claude Code", "Codex", "LangChain", "LiteLLM")
    )
    assert set(re.findall(r"export (\w+)=", claude)) <= set(re.findall(r"\b([A-Z_]+)\b", tried))
    for word in re.findall(r"^(\w+) =", codex, re.MULTILINE):
        assert f"{word} = " in tried, word
    for word in (
        *re.findall(r"\b(Chat\w+)\(", langchain),
        "client_kwargs",
        "api_base",
        *re.findall(r"(\w+)/`", litellm),
    ):
        assert word in tried, word
