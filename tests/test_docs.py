"""Every code block and link of README, docs/ and the examples' README: commands and their flags exist, data and code parse.

What can run does so in the tests beside this one (test_readme, and test_documentation of each part); this one leaves none out.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main
import yaml

from pocketserver.cli.main import app
from tests.test_serve_command import Started

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?<![\w./-])(?:pocketserver|make) [^|)\n`]*")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
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


@pytest.mark.parametrize("page", ["docs/security.md", "docs/metrics.md"])
def test_its_commands_about_keys_work(page: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": PATH, "POCKETSERVER_HOME": str(tmp_path)}
    lines = [line for block in blocks(ROOT / page, "sh") for line in block.splitlines()]
    assert lines
    for line in lines:
        assert line.startswith("pocketserver key ")
        ran = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (line, ran.stderr)


def test_the_commands_of_the_examples_readme_work(tmp_path: Path) -> None:
    [block] = blocks(ROOT / "examples" / "README.md", "sh")
    server = Started(tmp_path, environment={"POCKETSERVER_MDNS": "false"})
    try:
        code = block.replace("http://127.0.0.1:8080/v1", server.ready["base_url"])
        environment = {**os.environ, "PATH": PATH, "POCKETSERVER_HOME": str(tmp_path)}
        ran = subprocess.run(
            ["sh", "-ec", code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        server.process.kill()
        server.finish()

    assert ran.returncode == 0, ran.stderr
    assert "error: model_not_found" in ran.stdout


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
