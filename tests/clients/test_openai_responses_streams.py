"""What goes over the socket in the Responses API: every stream held to the Open Responses rules, owners, ends, profiles."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.rules import NewRule
from pocketserver.simulator.words import NewFault
from tests.serving import FAST, running
from tests.waiting import until
from tests.wire.lark_grammars import PATCH_GRAMMAR
from tests.wire.responses_stream import Walked, check_response, walk

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
HI: dict[str, Any] = {"model": "default", "input": "hi"}
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Patch files"}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR}
CALL = {"name": "add", "arguments": {"a": 1}}


async def streamed(http: aiohttp.ClientSession, **fields: Any) -> Walked:
    async with http.post("/v1/responses", json={**HI, "stream": True, **fields}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        return walk(await response.read())


async def asked(http: aiohttp.ClientSession, **fields: Any) -> tuple[int, Any]:
    async with http.post("/v1/responses", json={**HI, **fields}) as response:
        assert response.content_type == "application/json"
        return response.status, await response.json()


def engine_that_says(*replies: dict[str, Any]) -> SimEngine:
    engine = SimEngine(FAST)
    for reply in replies:
        engine.rules.add(msgspec.convert({"reply": reply, "times": 1}, NewRule))
    return engine


SAYINGS: list[dict[str, Any]] = [
    {"text": "Hello there."},
    {"text": "Wait.", "tool_calls": [CALL]},
    {"tool_calls": [CALL, CALL]},
    {"reasoning": "Let me see.", "text": "Yes."},
    {"reasoning": "Let me see.", "tool_calls": [{"name": "apply_patch", "arguments": {"input": "*** Begin\n+é"}}]},
    {"text": ""},
    {"tool_calls": [{"name": "apply_patch", "arguments": "*** plain"}]},
    {"text": "Hello there.", "finish_reason": "length"},
]


@pytest.mark.parametrize("reply", SAYINGS, ids="+".join)
async def test_every_kind_of_answer_keeps_the_rules_and_is_the_same_document(
    tmp_path: Path, reply: dict[str, Any]
) -> None:
    """SD-03, all but the error."""
    async with (
        running(tmp_path, engine_that_says(reply, reply), profile="hub") as server,
        server.session() as http,
    ):
        walked = await streamed(http, tools=[ADD, PATCH])
        status, document = await asked(http, tools=[ADD, PATCH])

    assert status == 200
    check_response(document)
    assert [without_ids(item) for item in walked.response["output"]] == [
        without_ids(item) for item in document["output"]
    ]
    assert walked.response["status"] == document["status"]


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in {"id", "call_id"}}


async def test_a_cut_answer_is_incomplete_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        walked = await streamed(http, max_output_tokens=3)
        status, document = await asked(http, max_output_tokens=3)

    assert walked.types[-1] == "response.incomplete"
    assert (status, document["status"]) == (200, "incomplete")
    assert document["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_failure_in_mid_stream_is_response_failed_without_an_end_mark(tmp_path: Path) -> None:
    """SD-03, the error; the words of the seed: an error message in the stream, then close, no [DONE]."""
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        assert server.server.simulator is not None
        server.server.simulator.faults.add(msgspec.convert({"fault": "error_chunk", "after_tokens": 3}, NewFault))
        walked = await streamed(http)
        response_id = walked.response["id"]
        async with http.get(f"/v1/responses/{response_id}") as response:
            assert (await response.json())["status"] == "failed"
        status, refused = await asked(http, previous_response_id=response_id)
        exchange = await server.exchange()

    assert walked.types.count("response.output_text.delta") == 3
    assert walked.response["error"]["code"] == "server_error"
    assert walked.response["output"][0]["status"] == "incomplete"
    assert exchange.error == "internal_error"
    assert status == 400
    assert refused["error"]["param"] == "previous_response_id"
    assert "failed" in refused["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_hanging_up_frees_the_model_and_leaves_nothing_stored(tmp_path: Path, stream: bool) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=20, reply_tokens=100_000))
    async with running(tmp_path, engine, profile="hub") as server:
        async with server.session() as http:
            asking = asyncio.create_task(asked_raw(http, stream=stream))
            await until(lambda: engine.running == 1)
            asking.cancel()
            await until(lambda: engine.running == 0)
        exchange = await server.exchange()
        async with server.session() as http:
            async with http.get(f"/v1/responses/resp_{exchange.request_id}") as response:
                assert response.status == 404
    assert exchange.status in {200, 499}


async def asked_raw(http: aiohttp.ClientSession, **fields: Any) -> None:
    async with http.post("/v1/responses", json={**HI, **fields}) as response:
        await response.read()


async def test_a_long_silence_is_filled_with_events(tmp_path: Path) -> None:
    """A repeated response.in_progress resets the timers of clients that wait for events."""
    engine = SimEngine(SimOptions(tokens_per_second=2, reply_tokens=3))
    async with running(tmp_path, engine, profile="hub", keep_alive_seconds=0.05) as server, server.session() as http:
        walked = await streamed(http)

    assert walked.types.count("response.in_progress") > 2
    assert walked.types[-1] == "response.completed"


async def test_who_waits_is_told_so_and_then_answered(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=40, reply_tokens=40))
    settings: dict[str, Any] = {"early_headers_after_seconds": 0.05, "keep_alive_seconds": 0.05}
    async with running(tmp_path, engine, profile="hub", **settings) as server, server.session() as http:
        first = asyncio.create_task(streamed(http))
        await until(lambda: engine.running == 1)
        async with http.post("/v1/responses", json={**HI, "stream": True}) as response:
            data = await response.read()
        await first

    assert data.startswith(b": queued position=2")
    assert walk(data).types[-1] == "response.completed"


async def test_another_key_reads_and_continues_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        assert server.server.keys is not None
        other = {"Authorization": f"Bearer {server.server.keys.new('other')}"}
        server.server.keys.refresh()
        _, document = await asked(http)
        path = f"/v1/responses/{document['id']}"
        for method, place in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
            async with http.request(method, place, headers=other) as response:
                assert response.status == 404
                assert (await response.json())["error"] == {
                    "message": f"Response with id '{document['id']}' not found.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": None,
                }
        fields = {**HI, "previous_response_id": document["id"]}
        async with http.post("/v1/responses", json=fields, headers=other) as response:
            assert (await response.json())["error"]["code"] == "previous_response_not_found"
        reference = {**HI, "input": [{"type": "item_reference", "id": document["output"][0]["id"]}]}
        async with http.post("/v1/responses", json=reference, headers=other) as response:
            assert response.status == 400
        async with http.post("/v1/responses", json=reference) as response:
            assert response.status == 200
        async with http.get(path) as response:
            assert (await response.json())["id"] == document["id"]


async def test_input_items_come_in_pages(tmp_path: Path) -> None:
    said = [{"role": "user" if number % 2 == 0 else "assistant", "content": str(number)} for number in range(25)]
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        _, document = await asked(http, input=said)
        place = f"/v1/responses/{document['id']}/input_items"

        async def listed(**query: str) -> Any:
            async with http.get(place, params=query) as response:
                return await response.json()

        first = await listed()
        second = await listed(after=first["last_id"])
        forward = await listed(order="asc", limit="3")
        refused = [
            await listed(**query) for query in ({"limit": "0"}, {"limit": "101"}, {"order": "up"}, {"after": "x"})
        ]

    assert [item["content"][0]["text"] for item in first["data"]] == [str(number) for number in range(24, 4, -1)]
    assert (first["object"], first["has_more"], first["first_id"]) == ("list", True, first["data"][0]["id"])
    assert [item["content"][0]["text"] for item in second["data"]] == ["4", "3", "2", "1", "0"]
    assert not second["has_more"]
    assert [item["content"][0]["text"] for item in forward["data"]] == ["0", "1", "2"]
    assert all(item["id"] and item["status"] == "completed" for item in first["data"])
    assert [answer["error"]["param"] for answer in refused] == ["limit", "limit", "order", "after"]


async def test_a_stored_response_is_not_streamed_again(tmp_path: Path) -> None:
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        _, document = await asked(http)
        async with http.get(f"/v1/responses/{document['id']}", params={"stream": "true"}) as response:
            assert response.status == 400
        async with http.get(f"/v1/responses/{document['id']}", params={"include[]": "x"}) as response:
            stored = await response.json()

    assert stored == {key: value for key, value in document.items() if key != "warnings"}


async def test_a_deleted_parent_does_not_break_its_child(tmp_path: Path) -> None:
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        _, parent = await asked(http)
        _, child = await asked(http, previous_response_id=parent["id"], input="more")
        async with http.delete(f"/v1/responses/{parent['id']}") as response:
            assert await response.json() == {"id": parent["id"], "object": "response", "deleted": True}
        async with http.delete(f"/v1/responses/{parent['id']}") as response:
            assert response.status == 404
        status, grandchild = await asked(http, previous_response_id=child["id"], input="and more")

    assert status == 200
    assert grandchild["usage"]["input_tokens"] > child["usage"]["input_tokens"]


async def test_what_codex_sends_is_served(tmp_path: Path) -> None:
    """Section 10: hosted tools, a lark grammar, namespaces, reasoning with and without its content, store off."""
    reply = {"tool_calls": [{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\n"}}]}
    fields: dict[str, Any] = {
        "model": "gpt-5-codex",
        "instructions": "You are a coding agent. " * 400,
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
        ],
        "tools": [
            ADD,
            {**PATCH, "format": GRAMMAR},
            {"type": "namespace", "name": "mcp", "description": "", "tools": [{"type": "function", "name": "read"}]},
            {"type": "web_search", "external_web_access": False},
            {"type": "local_shell"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "text": {"verbosity": "medium"},
    }
    async with running(tmp_path, engine_that_says(reply), profile="hub") as server, server.session() as http:
        first = await streamed(http, **fields)
        [call] = [item for item in first.response["output"] if item["type"] == "custom_tool_call"]
        output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Success"}
        second = await streamed(http, **{**fields, "input": [*fields["input"], *first.response["output"], output]})

    assert call["input"] == "*** Begin Patch\n"
    assert all(isinstance(first.response["usage"][name], int) for name in ("input_tokens", "output_tokens"))
    reasoning, message = second.response["output"]
    assert reasoning["encrypted_content"]
    assert message["type"] == "message"


async def test_a_structured_answer_is_asked_for_in_the_flat_form(tmp_path: Path) -> None:
    """SO-11, the rows of this API."""
    schema = {
        "type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"],
        "additionalProperties": False,
    }  # fmt: skip
    flat = {"type": "json_schema", "name": "n", "schema": schema}
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        status, document = await asked(http, text={"format": flat})
        nested = await asked(http, text={"format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}})
        chat_form = await asked(http, response_format={"type": "json_object"})
        plain = await asked(http, text={"format": {"type": "text"}, "verbosity": "low"})

    assert status == 200
    assert json.loads(document["output"][0]["content"][0]["text"])["c"] in {"red", "blue"}
    assert document["text"]["format"] == {**flat, "description": None, "strict": False}
    assert (nested[0], nested[1]["error"]["param"]) == (400, "text.format.name")
    assert chat_form[0] == 400
    assert "text.format" in chat_form[1]["error"]["message"]
    assert plain[0] == 200


async def test_characters_made_of_several_tokens_arrive_whole(tmp_path: Path) -> None:
    """ST-01 in this API."""
    engine = SimEngine(FAST)
    tokens = [b"\xf0\x9f", b"\x91\xa9\xe2", b"\x80\x8d\xf0\x9f\x92\xbb", b"\xe6\x97", b"\xa5\xe6\x9c\xac"]
    async with running(tmp_path, engine, profile="hub") as server, server.session() as http:
        engine.script(tokens)
        walked = await streamed(http)
        engine.script(tokens)
        _, document = await asked(http)

    text = "".join(event["delta"] for event in walked.of("response.output_text.delta"))
    assert text == "\U0001f469\u200d\U0001f4bb\u65e5\u672c"
    assert document["output"][0]["content"][0]["text"] == text


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b'{"model":"default","input":"\xbe\xc8\xb3\xe7"}', {}, 400, "invalid_json"),
        (b'{"model":"default","input":"\xc0\xaf"}', {}, 400, "invalid_json"),
        (b'{"model":"a\\u0000b","input":"x"}', {}, 404, "model_not_found"),
        (b"\x28\xb5\x2f\xfd\x04\x00", {"Content-Encoding": "zstd"}, 415, "unsupported_encoding"),
        (b"\x28\xb5\x2f\xfd\x04\x00", {}, 400, "invalid_json"),
    ],
)
async def test_strange_bytes_are_refused_in_this_familys_shape(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    """HT-03 and HT-07 in this API."""
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        sent = {"Content-Type": "application/json", **headers}
        async with http.post("/v1/responses", data=body, headers=sent) as response:
            assert response.status == status
            error = (await response.json())["error"]
    assert error["code"] == code


async def test_random_ids_make_no_series(tmp_path: Path) -> None:
    """ME-01 for these routes."""
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        for number in range(5):
            async with http.get(f"/v1/responses/random-{number}") as response:
                assert response.status == 404
        async with http.get("/metrics") as response:
            text = await response.text()
    assert "random-" not in text
    assert "/v1/responses/{id}" in text


async def test_without_a_store_nothing_is_kept_and_a_chain_is_refused_clearly(tmp_path: Path) -> None:
    """Profile roach."""
    async with running(tmp_path, profile="roach", port=0) as server:
        async with aiohttp.ClientSession(base_url=server.origin) as http:
            fields = {"model": "sim-1b", "store": True}
            status, document = await asked(http, **fields)
            chained = await asked(http, **fields, previous_response_id=document["id"])
            referred = await asked(
                http, **{**fields, "input": [{"type": "item_reference", "id": document["output"][0]["id"]}]}
            )
            unrouted = []
            for method in ("GET", "DELETE"):
                async with http.request(method, f"/v1/responses/{document['id']}") as response:
                    unrouted.append((response.status, (await response.json())["error"]["code"]))

    assert (status, document["store"]) == (200, False)
    assert chained[0] == 400
    assert chained[1]["error"]["param"] == "previous_response_id"
    assert "keeps nothing between calls" in chained[1]["error"]["message"]
    assert referred[0] == 400
    assert unrouted == [(404, "unknown_route")] * 2


async def test_pooled_stores_refuses_hosted_tools_and_says_what_it_does_not_serve(tmp_path: Path) -> None:
    """Profile pooled: the rows of section 0."""
    async with running(tmp_path, profile="pooled") as server:
        async with aiohttp.ClientSession(base_url=server.origin) as http:
            fields = {"model": "pooled/sim-1b"}
            status, document = await asked(http, **fields)
            hosted = await asked(http, **fields, tools=[{"type": "web_search"}])
            recursive = {**GRAMMAR, "definition": 'start: "(" start? ")"'}
            lark = await asked(http, **fields, tools=[{**PATCH, "format": recursive}])
            custom = await asked(http, **fields, tools=[PATCH], tool_choice="required")
            unserved = []
            for path in ("input_tokens", "compact", f"{document['id']}/cancel"):
                async with http.post(f"/v1/responses/{path}", json={}) as response:
                    unserved.append((response.status, (await response.json())["error"]["message"]))

    assert (status, document["model"], document["store"]) == (200, "pooled/sim-1b", True)
    assert (hosted[0], hosted[1]["error"]["param"]) == (400, "tools[0].type")
    assert "web_search" in hosted[1]["error"]["message"]
    assert (lark[0], lark[1]["error"]["param"]) == (400, "tools[0].format.definition")
    assert custom[1]["output"][0]["type"] == "custom_tool_call"
    assert [code for code, _ in unserved] == [404, 404, 404]
    assert all("not served" in message for _, message in unserved[:2])


async def test_a_strict_server_refuses_what_it_would_ignore(tmp_path: Path) -> None:
    async with running(tmp_path, profile="hub", strict="on") as server, server.session() as http:
        status, refused = await asked(http, model="sim-1b", frobnicate=True)

    assert (status, refused["error"]["param"]) == (400, "frobnicate")


async def test_warnings_are_in_the_header_and_in_the_document(tmp_path: Path) -> None:
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        async with http.post("/v1/responses", json={"model": "sim-1b", "input": "x", "max_tokens": 4}) as response:
            document = await response.json()
            header = response.headers["x-pocketserver-warnings"]

    assert document["warnings"] == ["max_tokens:ignored, this API takes max_output_tokens"]
    assert header.startswith("max_tokens:")


COMPLIANCE: dict[str, dict[str, Any]] = {
    "basic-response": {"input": [{"type": "message", "role": "user", "content": "Say hello."}]},
    "system-prompt": {
        "input": [
            {"type": "message", "role": "system", "content": "You are a pirate."},
            {"type": "message", "role": "user", "content": "Say hello."},
        ]
    },
    "multi-turn": {
        "input": [
            {"type": "message", "role": "user", "content": "I am Ann."},
            {"type": "message", "role": "assistant", "content": "Hello Ann."},
            {"type": "message", "role": "user", "content": "Who am I?"},
        ]
    },
}


@pytest.mark.parametrize("name", COMPLIANCE)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_open_responses_suite(tmp_path: Path, name: str, stream: bool) -> None:
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        if stream:
            document = (await streamed(http, **COMPLIANCE[name])).response
        else:
            _, document = await asked(http, **COMPLIANCE[name])
    check_response(document)
    assert document["status"] == "completed"
    assert document["output"]


async def test_the_open_responses_suite_with_a_tool(tmp_path: Path) -> None:
    tool = {key: value for key, value in ADD.items() if key != "strict"}
    async with running(tmp_path, engine_that_says({"tool_calls": [CALL]}), profile="hub") as server:
        async with server.session() as http:
            walked = await streamed(http, tools=[tool])

    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= {*walked.types}
    assert walked.of("response.output_item.done")[0]["item"]["type"] == "function_call"


async def test_the_open_responses_suite_with_an_image_is_refused_knowingly(tmp_path: Path) -> None:
    """image-input fails on purpose: this server reads text only."""
    parts = [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        status, refused = await asked(http, input=[{"role": "user", "content": parts}])

    assert status == 400
    assert "text only" in refused["error"]["message"]


async def test_of_three_hundred_responses_the_last_256_are_kept(tmp_path: Path) -> None:
    async with running(tmp_path, profile="hub") as server, server.session() as http:
        ids = [(await asked(http, max_output_tokens=1))[1]["id"] for _ in range(300)]
        found = []
        for response_id in (ids[0], ids[43], ids[44], ids[-1]):
            async with http.get(f"/v1/responses/{response_id}") as response:
                found.append(response.status)

    assert found == [404, 404, 200, 200]


@pytest.mark.real_model
@pytest.mark.parametrize("template", ["thinking", "arguments"])
async def test_streams_of_a_real_model_keep_the_rules(tmp_path: Path, default_model_path: Path, template: str) -> None:
    engine = LlamaEngine(
        LlamaOptions(
            model_id="m",
            path=default_model_path,
            state_folder=tmp_path / "llama",
            context=1024,
            threads=1,
            chat_template=TEMPLATES / f"{template}.jinja",
        )
    )
    await engine.start()
    await engine.loaded()
    named = {"type": "custom", "name": "apply_patch"}
    async with running(tmp_path, engine, profile="hub") as server, server.session() as http:
        free = await streamed(http, tools=[ADD, PATCH], temperature=1.0, seed=4, max_output_tokens=40)
        called = await streamed(http, tools=[ADD, PATCH], tool_choice=named, max_output_tokens=60)
        effort = {"reasoning": {"effort": "none"}} if template == "thinking" else {}
        plain = await streamed(http, max_output_tokens=5, **effort)

    if template == "thinking":
        assert free.response["output"][0]["type"] == "reasoning"
        assert free.response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    kinds = [item["type"] for item in called.response["output"]]
    assert [kind for kind in kinds if kind not in {"reasoning", "custom_tool_call"}] == []
    assert [item["type"] for item in plain.response["output"]] == ["message"]
