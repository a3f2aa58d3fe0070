"""What the README shows runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pocketserver.errors import Code
from tests.test_serve_command import Started

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def block(language: str, word: str) -> str:
    """The one code block of a language that holds a word."""
    [found] = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if word in text]
    return found


def test_the_two_commands_are_in_the_makefile() -> None:
    targets = re.findall(r"^make (\w+)", block("sh", "make serve"), re.MULTILINE)

    assert targets == ["serve", "test"]
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)


@pytest.mark.parametrize(
    ("language", "word"), [("python", "from openai import OpenAI\n\nkey"), ("sh", "/v1/chat/completions \\")]
)
def test_a_client_example_gets_an_answer(language: str, word: str, tmp_path: Path) -> None:
    server = Started(tmp_path)
    try:
        code = block(language, word).replace("http://127.0.0.1:8080/v1", server.ready["base_url"])
        argv = [sys.executable, "-c", code] if language == "python" else ["sh", "-c", code]
        environment = {**os.environ, "PATH": PATH, "POCKETSERVER_HOME": str(tmp_path)}
        ran = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=True)
    finally:
        server.process.kill()
        server.finish()

    assert "sim-1b" in ran.stdout
    assert re.search(r"40 tokens|\"completion_tokens\":40", ran.stdout)


def test_the_examples_for_other_clients_get_answers(tmp_path: Path) -> None:
    server = Started(tmp_path, "--profile", "hub")
    try:
        code = block("sh", "x-api-key").replace("http://127.0.0.1:8080", server.ready["base_url"].removesuffix("/v1"))
        environment = {**os.environ, "PATH": PATH, "POCKETSERVER_HOME": str(tmp_path)}
        ran = subprocess.run(
            ["sh", "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
    finally:
        server.process.kill()
        server.finish()

    assert '"type":"message"' in ran.stdout
    assert '"done":true' in ran.stdout


def test_the_client_test_of_the_simulator_section_passes(tmp_path: Path) -> None:
    (tmp_path / "test_client.py").write_text(block("python", "pocketserver.reply"))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_client.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_the_commands_of_the_keys_section_work(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": PATH, "POCKETSERVER_HOME": str(tmp_path)}
    for line in block("sh", "key new phone").splitlines():
        ran = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (line, ran.stderr)


def test_every_code_of_the_error_table_exists_and_those_a_client_meets_are_in_it() -> None:
    table = README[README.index("| Status | Code |") : README.index("An error in the middle of a stream")]
    rows = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    named = {word for row in rows for word in re.findall(r"`([a-z_]+)`", row.split("|")[2])}
    elsewhere = {
        "context_length_exceeded",
        "host_gone",
        "disconnected_by_host",
        "upstream_failed",
        "upstream_unreachable",
        "response_not_found",
        "previous_response_not_found",
    }

    assert named == {code.value for code in Code} - elsewhere
