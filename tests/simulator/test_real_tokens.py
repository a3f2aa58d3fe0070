"""A GGUF file that is named counts prompts and cuts replies with its own vocabulary and chat template."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from openai import OpenAI

from pocketserver.engines.llama.model import VocabularyAlone
from pocketserver.testing.device import SimulatedServer

Factory = Callable[..., SimulatedServer]
CHAT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere is the wörd 'harbour' from?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is the wörd 'harbour' from?"},
]
REPLY = "Middle English: herberwe, «shelter» 🛟, of course."


@pytest.fixture(scope="module")
def vocabulary(default_model_path: Path) -> Iterator[VocabularyAlone]:
    llama_cpp.llama_backend_init()
    alone = VocabularyAlone(str(default_model_path))
    yield alone
    alone.close()


@pytest.fixture
def server(pocketserver_factory: Factory, default_model_path: Path) -> SimulatedServer:
    return pocketserver_factory(model=str(default_model_path))


def client_of(server: SimulatedServer) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)


def test_usage_is_what_the_models_own_template_and_vocabulary_make(
    server: SimulatedServer, vocabulary: VocabularyAlone
) -> None:
    server.reply(REPLY)
    with client_of(server) as client:
        answer = client.chat.completions.create(model="default", messages=MESSAGES)

    assert answer.choices[0].message.content == REPLY
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(vocabulary.vocabulary.tokenize(CHAT))
    assert answer.usage.completion_tokens == len(vocabulary.vocabulary.split(REPLY, special=False))


def test_replies_are_streamed_in_the_models_own_tokens(server: SimulatedServer, vocabulary: VocabularyAlone) -> None:
    server.reply(REPLY)
    with client_of(server) as client:
        chunks = [*client.chat.completions.create(model="default", messages=MESSAGES, stream=True)]

    said = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    tokens = vocabulary.vocabulary
    spelt = [tokens.piece(token) for token in tokens.split(REPLY, special=False)]
    whole = [piece.decode() for piece in spelt if _is_whole(piece)]
    assert "".join(said) == REPLY
    assert [piece for piece in said if piece in whole] == whole


def test_a_limit_counts_the_models_own_tokens(server: SimulatedServer, vocabulary: VocabularyAlone) -> None:
    server.reply("Uncharacteristically interdisciplinary.")
    with client_of(server) as client:
        answer = client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=3)

    tokens = vocabulary.vocabulary
    first = tokens.split("Uncharacteristically interdisciplinary.", special=False)[:3]
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == b"".join(map(tokens.piece, first)).decode()


def test_prose_has_as_many_tokens_as_ever(server: SimulatedServer) -> None:
    with client_of(server) as client:
        answer = client.chat.completions.create(model="default", messages=MESSAGES)

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert answer.choices[0].finish_reason == "stop"


def test_what_the_models_template_cannot_express_is_refused_as_the_model_would(server: SimulatedServer) -> None:
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    with client_of(server) as client:
        response = client.chat.completions.with_raw_response
        with pytest.raises(Exception, match="tools") as caught:
            response.create(model="default", messages=MESSAGES, tools=[tool])

    assert getattr(caught.value, "status_code", None) == 400


def test_a_device_may_name_the_files_of_its_models(
    pocketserver_factory: Factory, default_model_path: Path, tmp_path: Path, vocabulary: VocabularyAlone
) -> None:
    (tmp_path / "tiny.gguf").symlink_to(default_model_path)
    device = tmp_path / "mine.toml"
    device.write_text('summary = "mine"\n[[models]]\nfile = "tiny.gguf"\n[[models]]\nid = "by-rule"\n')
    server = pocketserver_factory(device=str(device))
    with client_of(server) as client:
        by_file = client.chat.completions.create(model="tiny", messages=MESSAGES).usage
        server.device.model = "by-rule"
        by_rule = client.chat.completions.create(model="by-rule", messages=MESSAGES).usage

    assert by_file is not None
    assert by_rule is not None
    assert by_file.prompt_tokens == len(vocabulary.vocabulary.tokenize(CHAT))
    assert by_rule.prompt_tokens == 2 + 4 + 6 + 4 + 1


def test_without_the_packages_it_says_what_to_install(default_model_path: Path) -> None:
    program = (
        "import sys\nsys.modules['llama_cpp'] = None\n"
        "from pocketserver.cli.main import main\nsys.argv = ['pocketserver', *sys.argv[1:]]\nmain()"
    )
    command = [sys.executable, "-c", program, "sim", "serve", "--port", "0", "--model", str(default_model_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "Install pocketserver[llama]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_rule_needs_none_of_the_packages() -> None:
    program = (
        "import json, sys\nfrom pocketserver.settings import load\nfrom pocketserver.simulator.presets import sim_engine\n"
        "sim_engine(load(flags={'engine': 'sim', 'device': 'iphone-15-pro'}, environment={}).settings)\n"
        "print(json.dumps([name for name in ('llama_cpp', 'llguidance', 'jinja2') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert "llama_cpp" not in json.loads(done.stdout)


def _is_whole(piece: bytes) -> bool:
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False
