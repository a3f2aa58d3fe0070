"""The page of RoachInference's model server, line by line, on the simulator in profile `roach`."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pocketserver import run_file
from pocketserver.errors import UsageError
from pocketserver.listening import PortTaken, listen
from pocketserver.profile import load_profile
from pocketserver.settings import load
from tests.profiles.asking import HI, Answered, Page, events, is_anthropic_error, is_ollama_error, is_openai_error, page
from tests.test_serve_command import Started
from tests.waiting import until

PORT = 36434
MODEL = "sim-1b"
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, MESSAGES, COUNT = "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
FUNCTION = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="

BODIES: Mapping[str, dict[str, Any]] = {
    "/api/chat": {"model": MODEL, "messages": HI},
    "/api/generate": {"model": MODEL, "prompt": "hi"},
    "/api/embed": {"model": MODEL, "input": "hi"},
    "/api/show": {"model": MODEL},
    CHAT: {"model": MODEL, "messages": HI},
    COMPLETIONS: {"model": MODEL, "prompt": "hi"},
    RESPONSES: {"model": MODEL, "input": "hi"},
    EMBEDDINGS: {"model": MODEL, "input": "hi"},
    MESSAGES: {"model": MODEL, "messages": HI, "max_tokens": 50},
    COUNT: {"model": MODEL, "messages": HI},
}
"""The routes that ask a model something."""
STREAMS = ("/api/chat", "/api/generate", CHAT, COMPLETIONS, RESPONSES, MESSAGES)
THE_SEVENTEEN = (
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/create"),
    ("POST", "/api/show"),
    ("GET", "/api/ps"),
    ("GET", "/api/tags"),
    ("POST", "/api/pull"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("POST", RESPONSES),
    ("POST", EMBEDDINGS),
    ("GET", "/v1/models"),
    ("POST", MESSAGES),
    ("POST", COUNT),
)
every_model_route = pytest.mark.parametrize("path", BODIES)
streaming = pytest.mark.parametrize("path", STREAMS)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def roach(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with page(tmp_path_factory.mktemp("home"), "roach") as served:
        yield served


def fits_its_family(path: str, answer: Answered) -> bool:
    if path.startswith(MESSAGES):
        return is_anthropic_error(answer)
    return is_openai_error(answer) if path.startswith("/v1") else is_ollama_error(answer)


# Address and rules


@pytest.mark.parametrize(
    ("url", "listens"),
    [
        (None, ("127.0.0.1", PORT)),
        ("http://127.0.0.1:11434", ("127.0.0.1", PORT)),
        ("http://localhost", ("127.0.0.1", PORT)),
        ("http://127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("http://localhost:4711/", ("127.0.0.1", 4711)),
        ("http://[::1]:4711", ("::1", 4711)),
        ("127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("127.0.0.3", ("127.0.0.3", PORT)),
    ],
)
async def test_it_listens_where_ollama_base_url_points(url: str | None, listens: tuple[str, int]) -> None:
    environment = {} if url is None else {"OLLAMA_BASE_URL": url}
    settings = load(flags={"profile": "roach"}, environment=environment).settings

    assert (settings.host, settings.port) == listens


@pytest.mark.parametrize(
    "url",
    ["http://192.168.1.5:11434", "https://127.0.0.1:11434", "http://ollama.example", "http://0.0.0.0:11434", "//"],
)
async def test_it_starts_nowhere_else_and_says_why(url: str) -> None:
    with pytest.raises(UsageError, match="OLLAMA_BASE_URL"):
        load(flags={"profile": "roach"}, environment={"OLLAMA_BASE_URL": url})


async def test_an_explicit_port_wins_over_ollama_base_url() -> None:
    settings = load(
        flags={"profile": "roach", "port": 5000}, environment={"OLLAMA_BASE_URL": "http://127.0.0.1:4711"}
    ).settings

    assert settings.port == 5000


async def test_when_another_program_holds_its_port_a_free_one_is_named_everywhere(tmp_path: Path) -> None:
    """In the ready line, the banner, the run file, and by the route for providers."""
    with await _hold(PORT):
        server = await asyncio.to_thread(Started, tmp_path, "--profile", "roach", port=None)
        port = server.ready["port"]
        try:
            [running] = run_file.running_servers(tmp_path / "run")
            providers = json.load(await asyncio.to_thread(server.ask, "/api/system/ai/providers", None, "none"))
        finally:
            server.process.terminate()
            _, _, banner = await asyncio.to_thread(server.finish)

    assert port != PORT
    assert server.ready["base_url"] == f"http://127.0.0.1:{port}/v1"
    assert server.ready["api_key"] is None
    assert f"http://127.0.0.1:{port}/v1" in banner
    assert running.port == port
    url = f"http://127.0.0.1:{port}"
    assert providers == {"providers": [{"id": "roachinference", "base_url": url, "port": port}]}


async def _hold(port: int) -> socket.socket:
    """Take the port; another run of this test may have it for a moment."""
    held: list[socket.socket] = []

    def taken() -> bool:
        with contextlib.suppress(PortTaken):
            held.extend(listen("127.0.0.1", port))
        return bool(held)

    await until(taken)
    return held[0]


async def test_it_asks_for_no_token_like_ollama(roach: Page) -> None:
    assert roach.served.server.keys is None
    assert (await roach.get("/api/tags")).status == 200
    assert (await roach.get("/api/tags", Authorization="Bearer ollama")).status == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:{port}", "localhost", "localhost:11434", "[::1]", "app.localhost"]
)
async def test_the_host_must_be_a_loopback_name_with_any_port(roach: Page, host: str) -> None:
    assert (await roach.get("/api/tags", Host=host.format(port=roach.port))).status == 200


@every_model_route
@pytest.mark.parametrize("host", ["example.com", "192.168.1.5:36434", "127.0.0.1.example.com", "0.0.0.0"])
async def test_another_host_is_403(roach: Page, path: str, host: str) -> None:
    answer = await roach.post(path, BODIES[path], Host=host)

    assert answer.status == 403
    assert fits_its_family(path, answer)


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:3000",
        "http://localhost",
        "https://localhost:8443",
        "http://[::1]:3000",
        "app://roachnet",
        "file://",
        "tauri://localhost",
        "vscode-webview://1a2b3c",
    ],
)
async def test_an_origin_of_this_machine_or_a_desktop_app_may_call(roach: Page, origin: str) -> None:
    assert (await roach.post("/api/show", BODIES["/api/show"], Origin=origin)).status == 200


@every_model_route
@pytest.mark.parametrize(
    "origin", ["https://example.com", "null", "http://192.168.1.5", "http://localhost.example.com"]
)
async def test_other_websites_get_a_403(roach: Page, path: str, origin: str) -> None:
    answer = await roach.post(path, BODIES[path], Origin=origin)

    assert answer.status == 403
    assert fits_its_family(path, answer)


@every_model_route
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_bodies_may_come_without_a_json_content_type(roach: Page, path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content_Type": content_type}
    skip = ["Content-Type"] if content_type is None else []
    data = json.dumps({**BODIES[path], "stream": False}).encode()
    async with (
        aiohttp.ClientSession(base_url=roach.served.origin, skip_auto_headers=skip) as http,
        http.post(path, data=data, headers={name.replace("_", "-"): text for name, text in headers.items()}) as answer,
    ):
        assert answer.status == 200


@every_model_route
async def test_errors_come_in_the_shape_of_the_route_that_was_asked(roach: Page, path: str) -> None:
    for body in (b"{", b"", {**BODIES[path], "model": "no-such-model"}):
        answer = await roach.post(path, body)
        assert 400 <= answer.status < 500
        assert fits_its_family(path, answer)


async def test_everywhere_else_errors_are_in_ollamas_shape(roach: Page) -> None:
    for path in ("/api/unknown", "/nowhere", "/health", "/metrics"):
        answer = await roach.get(path)
        assert answer.status == 404
        assert is_ollama_error(answer)


@every_model_route
async def test_a_missing_model_is_a_404_before_any_stream_starts(roach: Page, path: str) -> None:
    answer = await roach.post(path, {**BODIES[path], "model": "no-such-model", "stream": True})

    assert answer.status == 404
    assert answer.headers["Content-Type"].startswith("application/json")
    assert fits_its_family(path, answer)
    assert "no-such-model" in answer.message


async def test_the_models_list_is_one_plain_request(roach: Page) -> None:
    assert [model["id"] for model in (await roach.get("/v1/models")).json["data"]] == [MODEL]


# Ollama routes


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_chat_and_generate_stream_lines_of_json_unless_told_not_to(roach: Page, path: str) -> None:
    stream = await roach.post(path, BODIES[path])
    whole = await roach.post(path, {**BODIES[path], "stream": False})

    lines = [json.loads(line) for line in stream.body.splitlines()]
    assert stream.headers["Content-Type"] == "application/x-ndjson"
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert whole.json["done"]


async def test_tool_calls_come_back_as_objects_never_half_written(roach: Page) -> None:
    call = {"name": "look_up", "arguments": {"query": "a longer text in pieces", "count": 3}}
    assert roach.served.server.simulator is not None
    rule = roach.served.server.simulator.add_rule({"tool_calls": [call]})
    try:
        stream = await roach.post("/api/chat", {**BODIES["/api/chat"], "tools": [FUNCTION]})
    finally:
        roach.served.server.simulator.remove_rule(rule)

    calls = [
        call for line in map(json.loads, stream.body.splitlines()) for call in line["message"].get("tool_calls", [])
    ]
    assert [found["function"]["arguments"] for found in calls] == [call["arguments"]]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_format_takes_json_or_a_schema_which_is_enforced(roach: Page, path: str) -> None:
    def text(answer: Answered) -> str:
        document = answer.json
        return str(document["response"] if path == "/api/generate" else document["message"]["content"])

    any_json = await roach.post(path, {**BODIES[path], "format": "json", "stream": False})
    by_schema = await roach.post(path, {**BODIES[path], "format": SCHEMA, "stream": False})

    assert isinstance(json.loads(text(any_json)), dict)
    assert json.loads(text(by_schema)) == {"city": "Oslo"}


async def test_think_turns_a_reasoning_models_thinking_on_or_off(roach: Page) -> None:
    on = await roach.post("/api/chat", {**BODIES["/api/chat"], "think": True, "stream": False})
    off = await roach.post("/api/chat", {**BODIES["/api/chat"], "think": False, "stream": False})

    assert on.json["message"]["thinking"]
    assert "thinking" not in off.json["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_with_images_gets_a_400_that_says_text_only(roach: Page, stream: bool) -> None:
    message = {"role": "user", "content": "what is this?", "images": [IMAGE]}
    chat = await roach.post("/api/chat", {**BODIES["/api/chat"], "messages": [message], "stream": stream})
    generate = await roach.post("/api/generate", {**BODIES["/api/generate"], "images": [IMAGE], "stream": stream})

    assert (chat.status, generate.status) == (400, 400)
    assert "image" in chat.message
    assert "image" in generate.message


async def test_create_makes_a_model_over_an_installed_one_from_fields(roach: Page) -> None:
    made = await roach.post("/api/create", {"model": "pirate", "from": MODEL, "system": "Arr.", "stream": False})
    shown = await roach.post("/api/show", {"model": "pirate"})
    deleted = await roach.ask("DELETE", "/api/delete", {"model": "pirate"})

    assert (made.status, made.json["status"]) == (200, "success")
    assert shown.json["system"] == "Arr."
    assert deleted.status == 200


async def test_create_makes_a_model_from_a_modelfile(roach: Page) -> None:
    text = f"FROM {MODEL}\nSYSTEM Arr.\nPARAMETER temperature 0\nMESSAGE user hi\nMESSAGE assistant Ahoy\n"
    made = await roach.post("/api/create", {"model": "pirate", "modelfile": text, "stream": False})
    shown = await roach.post("/api/show", {"model": "pirate"})
    await roach.ask("DELETE", "/api/delete", {"model": "pirate"})

    assert made.status == 200, made.body
    for word in ("Arr.", "temperature", "Ahoy"):
        assert word in shown.json["modelfile"]


async def test_tags_lists_every_model_the_server_can_load(tmp_path: Path) -> None:
    async with page(tmp_path, "roach") as served:
        await served.post("/api/copy", {"source": MODEL, "destination": "second"})
        tags = await served.get("/api/tags")

    assert {model["name"] for model in tags.json["models"]} == {f"{MODEL}:latest", "second:latest"}


# OpenAI routes


async def test_chat_completions_takes_tools_and_tool_choice(roach: Page) -> None:
    answer = await roach.post(CHAT, {**BODIES[CHAT], "tools": [FUNCTION], "tool_choice": "required"})

    assert answer.json["choices"][0]["finish_reason"] == "tool_calls"


async def test_chat_completions_takes_both_response_formats(roach: Page) -> None:
    json_object = await roach.post(CHAT, {**BODIES[CHAT], "response_format": {"type": "json_object"}})
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    json_schema = await roach.post(CHAT, {**BODIES[CHAT], "response_format": form})

    assert isinstance(json.loads(json_object.json["choices"][0]["message"]["content"]), dict)
    assert json.loads(json_schema.json["choices"][0]["message"]["content"]) == {"city": "Oslo"}


async def test_chat_completions_takes_reasoning_effort(roach: Page) -> None:
    answer = await roach.post(CHAT, {**BODIES[CHAT], "reasoning_effort": "low"})

    assert answer.json["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_chat_completions_streams_events_with_usage_when_asked(roach: Page) -> None:
    body = {**BODIES[CHAT], "stream": True, "stream_options": {"include_usage": True}}
    *chunks, done = events((await roach.post(CHAT, body)).body)

    assert done == "data: [DONE]"
    assert json.loads(chunks[-1].removeprefix("data: "))["usage"]["total_tokens"] > 0


async def test_responses_keeps_nothing_between_calls(roach: Page) -> None:
    first = await roach.post(RESPONSES, BODIES[RESPONSES])
    chained = await roach.post(RESPONSES, {**BODIES[RESPONSES], "previous_response_id": first.json["id"]})
    looked_up = await roach.get(f"{RESPONSES}/{first.json['id']}")

    assert first.json["store"] is False
    assert (chained.status, chained.json["error"]["param"]) == (400, "previous_response_id")
    assert looked_up.status == 404


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
async def test_an_image_audio_video_or_file_part_gets_a_400(roach: Page, kind: str) -> None:
    part = {"type": kind, kind: {"url": f"data:image/png;base64,{IMAGE}"}}
    chat = await roach.post(CHAT, {**BODIES[CHAT], "messages": [{"role": "user", "content": [part]}]})

    assert chat.status == 400
    assert kind in chat.message or kind.split("_", maxsplit=1)[0] in chat.message


@pytest.mark.parametrize("kind", ["input_image", "input_audio", "input_video", "input_file"])
async def test_such_a_part_in_responses_gets_a_400_too(roach: Page, kind: str) -> None:
    part = {"type": kind, "image_url": f"data:image/png;base64,{IMAGE}"}
    answer = await roach.post(RESPONSES, {**BODIES[RESPONSES], "input": [{"role": "user", "content": [part]}]})

    assert answer.status == 400
    assert is_openai_error(answer)


@pytest.mark.parametrize("given", [[1, 2, 3], [[1, 2]], 5, {"text": "hi"}, ["hi", 1], [None], None])
async def test_an_embeddings_input_that_is_neither_text_nor_a_list_of_texts_is_refused(roach: Page, given: Any) -> None:
    answer = await roach.post(EMBEDDINGS, {"model": MODEL, "input": given})

    assert answer.status == 400
    assert answer.json["error"]["param"] == "input"


# Anthropic routes


async def test_messages_takes_text_tool_use_and_tool_result_blocks(roach: Page) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Look it up."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Oslo"}]},
    ]
    tools = [{"name": "look_up", "input_schema": {"type": "object"}}]
    answer = await roach.post(MESSAGES, {**BODIES[MESSAGES], "messages": turns, "tools": tools})

    assert (answer.status, answer.json["content"][0]["type"]) == (200, "text")


@pytest.mark.parametrize("kind", ["image", "document"])
@pytest.mark.parametrize("place", ["message", "tool result"])
async def test_an_image_or_document_block_gets_a_400(roach: Page, kind: str, place: str) -> None:
    block: dict[str, Any] = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
    turns: list[dict[str, Any]] = [{"role": "user", "content": [block]}]
    if place == "tool result":
        call = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
        turns = [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    answer = await roach.post(MESSAGES, {**BODIES[MESSAGES], "messages": turns})

    assert answer.status == 400
    assert is_anthropic_error(answer)
    assert kind in answer.message


async def test_messages_takes_tools_and_tool_choice(roach: Page) -> None:
    tools = [{"name": "look_up", "input_schema": {"type": "object"}}]
    answer = await roach.post(MESSAGES, {**BODIES[MESSAGES], "tools": tools, "tool_choice": {"type": "any"}})

    assert answer.json["stop_reason"] == "tool_use"


async def test_messages_takes_thinking(roach: Page) -> None:
    answer = await roach.post(MESSAGES, {**BODIES[MESSAGES], "thinking": {"type": "enabled", "budget_tokens": 1024}})

    assert answer.json["content"][0]["type"] == "thinking"


async def test_messages_streams_anthropics_events(roach: Page) -> None:
    frames = events((await roach.post(MESSAGES, {**BODIES[MESSAGES], "stream": True})).body)
    kinds = [frame.split("\n", 1)[0] for frame in frames]

    assert kinds[0] == "event: message_start"
    assert kinds[-2:] == ["event: message_delta", "event: message_stop"]


async def test_count_tokens_counts_with_the_models_own_tokenizer_and_template(roach: Page) -> None:
    counted = (await roach.post(COUNT, BODIES[COUNT])).json["input_tokens"]
    used = (await roach.post(MESSAGES, BODIES[MESSAGES])).json["usage"]["input_tokens"]

    assert counted == used > 0


# Every route


async def test_all_seventeen_routes_are_in_the_profile() -> None:
    assert len(THE_SEVENTEEN) == 17
    assert {path for _, path in THE_SEVENTEEN} <= set(load_profile("roach").routes)


@pytest.mark.parametrize(("method", "path"), THE_SEVENTEEN)
async def test_the_route_answers_its_method_and_no_other(roach: Page, method: str, path: str) -> None:
    right = await roach.ask(method, path)
    wrong = await roach.ask("PATCH", path)

    assert right.status in (200, 400)
    assert (wrong.status, method in wrong.headers["Allow"]) == (405, True)
    assert fits_its_family(path, wrong)


async def test_raw_true_skips_the_template_and_an_empty_prompt_only_loads(roach: Page) -> None:
    templated = await roach.post("/api/generate", {**BODIES["/api/generate"], "stream": False})
    raw = await roach.post("/api/generate", {**BODIES["/api/generate"], "raw": True, "stream": False})
    loaded = await roach.post("/api/generate", {"model": MODEL})

    assert raw.json["prompt_eval_count"] <= templated.json["prompt_eval_count"]
    assert "context" not in raw.json
    assert (loaded.json["done"], loaded.json["done_reason"], loaded.json["response"]) == (True, "load", "")


async def test_embed_takes_one_input_or_a_list(roach: Page) -> None:
    one = await roach.post("/api/embed", BODIES["/api/embed"])
    several = await roach.post("/api/embed", {"model": MODEL, "input": ["hi", "ho"]})

    assert len(one.json["embeddings"]) == 1
    assert len(several.json["embeddings"]) == 2
    assert one.json["embeddings"][0] == several.json["embeddings"][0]


async def test_show_tells_architecture_parameters_template_capabilities_and_modelfile(roach: Page) -> None:
    shown = (await roach.post("/api/show", BODIES["/api/show"])).json

    assert {"details", "model_info", "template", "capabilities", "modelfile"} <= set(shown)
    assert "completion" in shown["capabilities"]
    assert shown["modelfile"].lstrip().splitlines()


async def test_ps_lists_what_is_in_memory_now(roach: Page) -> None:
    await roach.post("/api/generate", {"model": MODEL})
    loaded = await roach.get("/api/ps")
    await roach.post("/api/generate", {"model": MODEL, "keep_alive": 0})
    unloaded = await roach.get("/api/ps")

    assert [model["name"] for model in loaded.json["models"]] == [f"{MODEL}:latest"]
    assert unloaded.json["models"] == []


async def test_pull_of_a_name_that_the_catalog_does_not_have_is_refused(roach: Page) -> None:
    answer = await roach.post("/api/pull", {"model": "no-such-model", "stream": False})

    assert answer.status in (400, 404, 500)
    assert is_ollama_error(answer)


async def test_copy_gives_a_second_name_and_delete_takes_it_away(roach: Page) -> None:
    copied = await roach.post("/api/copy", {"source": MODEL, "destination": "second"})
    answered = await roach.post("/api/generate", {"model": "second", "prompt": "hi", "stream": False})
    deleted = await roach.ask("DELETE", "/api/delete", {"model": "second"})
    gone = await roach.post("/api/generate", {"model": "second", "prompt": "hi"})

    assert (copied.status, answered.status, deleted.status, gone.status) == (200, 200, 200, 404)


async def test_completions_continues_a_prompt(roach: Page) -> None:
    assert (await roach.post(COMPLETIONS, BODIES[COMPLETIONS])).json["choices"][0]["text"]


async def test_responses_takes_function_tools_and_structured_output(roach: Page) -> None:
    tool = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
    called = await roach.post(RESPONSES, {**BODIES[RESPONSES], "tools": [tool], "tool_choice": "required"})
    form = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    written = await roach.post(RESPONSES, {**BODIES[RESPONSES], "text": form})

    assert called.json["output"][0]["type"] == "function_call"
    assert json.loads(written.json["output"][0]["content"][0]["text"]) == {"city": "Oslo"}


async def test_embeddings_have_openais_shape(roach: Page) -> None:
    document = (await roach.post(EMBEDDINGS, BODIES[EMBEDDINGS])).json

    assert (document["object"], document["data"][0]["object"]) == ("list", "embedding")
    assert document["usage"]["prompt_tokens"] > 0


async def test_models_answers_one_by_its_id(roach: Page) -> None:
    one = await roach.get(f"/v1/models/{MODEL}")
    missing = await roach.get("/v1/models/no-such-model")

    assert one.json["id"] == MODEL
    assert missing.status == 404


@streaming
async def test_every_generating_route_streams_or_not(roach: Page, path: str) -> None:
    stream = await roach.post(path, {**BODIES[path], "stream": True})
    whole = await roach.post(path, {**BODIES[path], "stream": False})

    assert stream.headers["Content-Type"].split(";")[0] in ("text/event-stream", "application/x-ndjson")
    assert whole.headers["Content-Type"].startswith("application/json")
