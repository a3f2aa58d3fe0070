"""Models that are not loaded: what they can do and how they count, whatever their template tries."""

import asyncio
import os
import signal
from collections.abc import Awaitable
from pathlib import Path

import msgspec
import pytest

from pocketserver.chat import JsonSchema, Message, Role, Tool
from pocketserver.engines.llama.capabilities import FILE_NAME
from pocketserver.engines.llama.examiner import Examiner
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import asking, completing
from tests.engines.llama.recurrent_model import write_recurrent_model
from tests.waiting import until

pytestmark = pytest.mark.real_model

TEMPLATES = Path(__file__).parents[2] / "templates"
TOOL = Tool(name="now", parameters={"type": "object", "properties": {"zone": {"type": "string"}}})
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SWELLING = (
    "{% set kept = [] %}{% for a in range(99999) %}{% set _ = kept.append('x' * 4000000 ~ a) %}{% endfor %}"
    "{{ kept | length }}"
)


@pytest.fixture
def examiner(tmp_path: Path) -> Examiner:
    return Examiner(tmp_path)


async def refused(asked: Awaitable[object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await asked
    return caught.value


async def test_a_model_s_own_template_tells_what_it_can_do(examiner: Examiner, default_model_path: Path) -> None:
    found = await examiner.examined(default_model_path)
    assert (found.completion, found.chat_template) == (True, True)
    assert (found.tools, found.thinking, found.embedding, found.template_problem) == (False, False, False, None)


async def test_a_template_of_one_s_own_gives_tools_and_thinking(examiner: Examiner, default_model_path: Path) -> None:
    calling = await examiner.examined(default_model_path, TEMPLATES / "tags.jinja")
    thinking = await examiner.examined(default_model_path, TEMPLATES / "thinking.jinja")
    assert calling.tools
    assert thinking.thinking


async def test_a_model_without_a_template_says_so(examiner: Examiner, tmp_path: Path) -> None:
    found = await examiner.examined(write_recurrent_model(tmp_path / "tiny.gguf"))
    assert (found.completion, found.chat_template, found.tools) == (True, False, False)


async def test_what_was_found_is_remembered_until_the_file_changes(examiner: Examiner, tmp_path: Path) -> None:
    path = write_recurrent_model(tmp_path / "tiny.gguf")
    found = await examiner.examined(path)
    memory = tmp_path / FILE_NAME
    memory.write_bytes(memory.read_bytes().replace(b'"tools":false', b'"tools":true'))
    assert (await examiner.examined(path)).tools  # told from memory alone

    os.utime(path, (1, 1))

    assert await examiner.examined(path) == found


async def test_a_damaged_memory_counts_as_empty(examiner: Examiner, default_model_path: Path, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"x": 3')
    assert (await examiner.examined(default_model_path)).completion


@pytest.mark.asyncio(loop_scope="session")
async def test_counts_are_those_of_the_loaded_model(
    tmp_path: Path, default_model_path: Path, engine: LlamaEngine
) -> None:
    examiner = Examiner(tmp_path)
    plain = asking("How many?", constraint=JsonSchema(schema={"type": "object"}))
    system = msgspec.structs.replace(plain, messages=(Message(role=Role.SYSTEM, content="Be short."), *plain.messages))
    for request in (plain, system, completing("Once upon a time")):
        assert await examiner.count(default_model_path, request) == await engine.count(request)


async def test_a_count_with_tools_is_refused_where_the_template_has_none(
    examiner: Examiner, default_model_path: Path
) -> None:
    request = asking("How late?", tools=(TOOL,))
    assert (await refused(examiner.count(default_model_path, request))).code is Code.TOOLS_UNSUPPORTED
    assert await examiner.count(default_model_path, request, TEMPLATES / "tags.jinja") > 20


async def test_a_file_that_is_no_model_is_refused(examiner: Examiner, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert (await refused(examiner.examined(broken))).code is Code.MODEL_NOT_LOADED
    assert (await refused(examiner.examined(tmp_path / "absent.gguf"))).code is Code.MODEL_NOT_LOADED


def written(folder: Path, source: str) -> Path:
    path = folder / "hostile.jinja"
    path.write_text(source, encoding="utf-8")
    return path


async def test_a_template_that_does_not_end_by_itself_offers_nothing(
    examiner: Examiner, default_model_path: Path, tmp_path: Path
) -> None:
    found = await examiner.examined(default_model_path, written(tmp_path, ENDLESS))
    assert (found.completion, found.tools, found.thinking) == (True, False, False)


async def test_a_template_that_outlasts_the_server_s_patience_is_refused(
    default_model_path: Path, tmp_path: Path
) -> None:
    examiner = Examiner(tmp_path, answer_seconds=1.0)
    refusal = await refused(examiner.examined(default_model_path, written(tmp_path, ENDLESS)))
    assert refusal.code is Code.TEMPLATE_UNSUPPORTED
    assert "does not come to an end" in refusal.message
    assert examiner.worker_pid is None


async def test_a_template_that_eats_memory_is_refused(
    examiner: Examiner, default_model_path: Path, tmp_path: Path
) -> None:
    refusal = await refused(examiner.count(default_model_path, asking("Hi."), written(tmp_path, SWELLING)))
    assert refusal.code is Code.TEMPLATE_UNSUPPORTED
    assert "memory" in refusal.message


async def test_a_process_that_dies_over_a_template_is_a_clear_refusal(
    examiner: Examiner, default_model_path: Path, tmp_path: Path
) -> None:
    asked = asyncio.create_task(examiner.examined(default_model_path, written(tmp_path, ENDLESS)))
    await until(lambda: examiner.worker_pid is not None)
    os.kill(examiner.worker_pid or 0, signal.SIGKILL)
    refusal = await refused(asked)
    assert refusal.code is Code.TEMPLATE_UNSUPPORTED
    assert "ends the model process" in refusal.message
    assert (await examiner.examined(default_model_path)).completion
