"""What the field's clients really send to Anthropic's routes, byte by byte: coding agents, odd histories, hostile bodies."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.rules import Match, NewRule, Reply, ScriptedCall
from tests.clients.anthropic_serving import serving_messages
from tests.serving import FAST, Running, running

HI: list[Any] = [{"role": "user", "content": "hi"}]
PATH = "/v1/messages"
BETA = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,thinking-token-count-2026-05-13,"
    "context-management-2025-06-27,mid-conversation-system-2026-04-07,effort-2025-11-24,x-new"
)
TEMPLATES = Path(__file__).resolve().parent.parent / "templates"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with serving_messages(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def http(server: Running) -> AsyncIterator[aiohttp.ClientSession]:
    async with server.session() as session:
        yield session


@pytest.fixture
def engine(server: Running) -> SimEngine:
    engine = server.server.engine
    assert isinstance(engine, SimEngine)
    engine.rules.clear()
    return engine


async def post(
    http: aiohttp.ClientSession, body: bytes | Mapping[str, Any], path: str = PATH, **headers: str
) -> tuple[int, Any, Mapping[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(path, data=data, headers={"Content-Type": "application/json", **headers}) as response:
        text = await response.text()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(text) if is_json else text, response.headers


def asking(**fields: Any) -> dict[str, Any]:
    return {"model": "default", "max_tokens": 32, "messages": HI, **fields}


def agent_body(turn: int) -> dict[str, Any]:
    """A coding agent's request: what changes from turn to turn is the billing line and the mark for caching."""
    mark = {"type": "ephemeral"}
    tool = {"description": "d " * 300, "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}
    reminder = {"type": "text", "text": "<system-reminder>Be careful.</system-reminder>"}
    first = [reminder, {"type": "text", "text": "List the files.", **({"cache_control": mark} if turn == 0 else {})}]
    messages: list[Any] = [{"role": "user", "content": first}, {"role": "system", "content": "You are on Linux."}]
    if turn:
        call = {"type": "tool_use", "id": "toolu_1", "name": "tool_0", "input": {"path": "."}}
        thought = {"type": "thinking", "thinking": "I list them.", "signature": "local"}
        result = {"tool_use_id": "toolu_1", "type": "tool_result", "content": "a.txt", "is_error": False}
        messages += [
            {"role": "assistant", "content": [thought, call]},
            {"role": "user", "content": [{**result, "cache_control": mark}]},
        ]
    return {
        "model": "claude-opus-4-8",
        "messages": messages,
        "system": [
            {
                "type": "text",
                "text": f"x-anthropic-billing-header: cc_version=2.1.197.a; cc_entrypoint=cli; cch={turn};",
            },
            {"type": "text", "text": "You are an agent.", "cache_control": mark},
            {"type": "text", "text": "Long rules.", "cache_control": {**mark, "ttl": "1h"}},
        ],
        "tools": [{"name": f"tool_{number}", **tool} for number in range(24)],
        "metadata": {"user_id": '{"device_id":"x"}'},
        "max_tokens": 64_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


class TestCodingAgents:
    HEADERS: dict[str, str] = {  # noqa: RUF012 - never changed
        "User-Agent": "claude-cli/2.1.197 (external, cli)",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": BETA,
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
        "X-Claude-Code-Session-Id": "s",
        "X-Stainless-Retry-Count": "0",
    }

    async def test_a_tool_round_is_served_with_all_that_they_send(
        self, http: aiohttp.ClientSession, engine: SimEngine
    ) -> None:
        call = ScriptedCall(name="tool_0", arguments={"path": "."})
        reply = Reply(reasoning="I list them.", text="I look.", tool_calls=(call,))
        engine.rules.add(NewRule(reply=reply, times=1))
        engine.rules.add(NewRule(match=Match(last_message="a.txt"), reply=Reply(text="One file: a.txt")))

        status, first, _ = await post(http, agent_body(0), f"{PATH}?beta=true", **self.HEADERS)
        assert status == 200
        events = events_of(first)
        starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        assert starts == ["thinking", "text", "tool_use"]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        status, second, _ = await post(http, agent_body(1), f"{PATH}?beta=true", **self.HEADERS)
        assert status == 200
        assert events_of(second)[0]["message"]["model"] == "claude-opus-4-8"
        assert read_stream(second)[0] == "One file: a.txt"

    async def test_a_count_of_the_same_body_is_served(self, http: aiohttp.ClientSession) -> None:
        body = {key: value for key, value in agent_body(1).items() if key not in ("max_tokens", "stream", "metadata")}
        status, counted, _ = await post(http, body, f"{PATH}/count_tokens?beta=true", **self.HEADERS)
        assert status == 200
        assert counted["input_tokens"] > 0

    @pytest.mark.parametrize("profile", ["pooled", "roach", "hub"])
    async def test_their_first_question_is_answered_without_a_key(self, tmp_path: Path, profile: str) -> None:
        async with running(tmp_path, SimEngine(FAST), profile=profile) as server:
            async with aiohttp.ClientSession(server.origin) as stranger, stranger.head("/") as response:
                assert response.status == 200

    @pytest.mark.parametrize("profile", ["pooled", "roach"])
    async def test_headers_queries_and_unknown_keys_change_nothing(self, tmp_path: Path, profile: str) -> None:
        more = {
            "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive"},
            "context_management": {},
            "output_config": {},
            "unknown": 1,
        }
        async with running(tmp_path, SimEngine(FAST), profile=profile) as server:
            async with aiohttp.ClientSession(server.origin) as client:
                model = f"{'pooled/' if profile == 'pooled' else ''}{server.server.model_id}"
                body = asking(model=model, **more)
                for version in ({"anthropic-version": "2023-06-01"}, {"anthropic-version": "1999-01-01"}, {}):
                    status, message, _ = await post(
                        client, body, f"{PATH}?beta=true", **{"anthropic-beta": BETA, **version}
                    )
                    assert (status, message["type"]) == (200, "message")
                    assert "warnings" not in message
                status, error, _ = await post(client, asking(model="claude-haiku-4-5"))
                assert (status, error["error"]["type"]) == (404, "not_found_error")
                assert model in error["error"]["message"]
                status, counted, _ = await post(client, body, f"{PATH}/count_tokens?beta=true")
                if profile == "roach":
                    assert (status, counted.keys()) == (200, {"input_tokens"})
                else:
                    assert (status, counted["error"]["type"]) == (404, "not_found_error")
                    assert "not served" in counted["error"]["message"]


class TestHistories:
    async def test_every_kind_of_block_of_ones_own_history_is_taken(self, http: aiohttp.ClientSession) -> None:
        call = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "f.txt"}]}
        mark = {"cache_control": {"type": "ephemeral"}}
        body = asking(
            system=[{"type": "text", "text": "S", **mark}],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": ""},
                        {"type": "redacted_thinking", "data": "eA=="},
                        call,
                    ],
                },
                {"role": "user", "content": [{**result, "is_error": False, **mark}]},
                {"role": "system", "content": "tools changed"},
                {"role": "user", "content": "go on"},
            ],
        )
        status, message, headers = await post(http, body)
        assert status == 200
        assert set(message["warnings"]) == {
            "cache_control:ignored",
            "messages.redacted_thinking:dropped",
            f"model:default was answered by {FAST.model}",
        }
        assert headers["x-pocketserver-warnings"] == ", ".join(message["warnings"])

    @pytest.mark.parametrize("role", ["user", "assistant", "system"])
    async def test_a_block_of_a_later_day_is_a_400_with_its_type_and_place(
        self, http: aiohttp.ClientSession, role: str
    ) -> None:
        body = asking(messages=[*HI, {"role": role, "content": [{"type": "tool_addition", "tool": {}}]}])
        status, error, _ = await post(http, body)
        assert (status, error["error"]["type"]) == (400, "invalid_request_error")
        assert "messages.1.content.0" in error["error"]["message"]
        assert "tool_addition" in error["error"]["message"]

    @pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
    async def test_an_image_is_a_400_that_says_text_only(self, http: aiohttp.ClientSession, path: str) -> None:
        body = asking(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}])
        status, error, _ = await post(http, body, path)
        assert status == 400
        assert "reads text only" in error["error"]["message"]


class TestStops:
    TEXT = "alpha bravo charlie \nbravo \U0001f30a end"

    @pytest.mark.parametrize(
        ("sequences", "matched", "text"),
        [
            (["charlie"], "charlie", "alpha bravo "),
            (["charlie", "bravo"], "bravo", "alpha "),
            (["\nbravo"], "\nbravo", "alpha bravo charlie "),
            (["\U0001f30a"], "\U0001f30a", "alpha bravo charlie \nbravo "),
            (["CHARLIE"], None, TEXT),
            (["alpha"], "alpha", ""),
            (["bravo charlie"], "bravo charlie", "alpha "),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_first_in_the_text_ends_it_and_is_named(
        self,
        http: aiohttp.ClientSession,
        engine: SimEngine,
        sequences: list[str],
        matched: str,
        text: str,
        stream: bool,
    ) -> None:
        engine.rules.add(NewRule(reply=Reply(text=self.TEXT)))
        status, answer, _ = await post(http, asking(stop_sequences=sequences, stream=stream))
        assert status == 200
        said, reason, sequence = read_stream(answer) if stream else read_message(answer)
        assert (said, reason, sequence) == (text, "stop_sequence" if matched else "end_turn", matched)

    async def test_white_space_alone_is_refused(self, http: aiohttp.ClientSession) -> None:
        status, error, _ = await post(http, asking(stop_sequences=[" "]))
        assert status == 400
        assert "stop_sequences.0" in error["error"]["message"]


def read_message(message: Any) -> tuple[str, str, str | None]:
    [block] = message["content"]
    return block["text"], message["stop_reason"], message["stop_sequence"]


def events_of(stream: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


def read_stream(stream: str) -> tuple[str, str, str | None]:
    events = events_of(stream)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    end = events[-2]["delta"]
    return "".join(delta["text"] for delta in deltas), end["stop_reason"], end["stop_sequence"]


class TestBodies:
    @pytest.mark.parametrize(
        "data",
        [
            b'{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"\\ud83d"}]}',
            b'{"model":"default","max_tokens":4,"messages":[{"role":"user","content":"\xbe\xc8\xb3\xe7"}]}',
            b'{"model":"default","max_tokens":4,"messages":[],"\xff":1}',
            b'{"model":"default","max_tokens":4,"stop_sequences":["\\ude00"],"messages":[]}',
        ],
    )
    async def test_what_is_no_text_is_a_400_of_this_family(self, http: aiohttp.ClientSession, data: bytes) -> None:
        for path in (PATH, f"{PATH}/count_tokens"):
            status, error, _ = await post(http, data, path)
            assert (status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            ({"stream": "false"}, 400),
            ({"stream": 1}, 400),
            ({"messages": "hi"}, 400),
            ({"messages": {"role": "user"}}, 400),
            ({"model": 7}, 400),
            ({"tools": {}}, 400),
            ({"model": "\u0000"}, 404),
            ({"some_future_field": {"a": [1]}}, 200),
            ({"messages": [{"role": "user", "content": "\U0001f600"}]}, 200),
        ],
    )
    async def test_a_wrong_type_is_a_400_that_names_the_field(
        self, http: aiohttp.ClientSession, fields: dict[str, Any], status: int
    ) -> None:
        answered, document, headers = await post(http, asking(**fields))
        assert answered == status
        assert headers["request-id"].startswith("req_")
        if status != 200:
            assert (document["type"], document["request_id"]) == ("error", headers["request-id"])
            assert next(iter(fields)) in document["error"]["message"]

    async def test_wrong_methods_and_paths_below_are_errors_of_this_family(self, http: aiohttp.ClientSession) -> None:
        async with http.get(PATH) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
            assert (await response.json())["error"]["type"] == "invalid_request_error"
        status, error, _ = await post(http, {}, f"{PATH}/batches")
        assert (status, error["error"]["type"]) == (404, "not_found_error")

    async def test_a_character_in_pieces_arrives_whole(self, http: aiohttp.ClientSession, engine: SimEngine) -> None:
        pieces = [b"\xf0\x9f", b"\x91\xa9\xe2", b"\x80\x8d\xf0\x9f\x92\xbb", b"\xe6\x97", b"\xa5\xe6\x9c\xac"]
        whole = "\U0001f469\u200d\U0001f4bb\u65e5\u672c"
        for stream in (True, False):
            engine.script(pieces)
            _, answer, _ = await post(http, asking(stream=stream))
            assert (read_stream(answer) if stream else read_message(answer))[0] == whole

    async def test_a_strict_server_refuses_what_it_would_leave_out(self, tmp_path: Path) -> None:
        async with serving_messages(tmp_path, strict="on") as server, server.session() as http:
            status, error, _ = await post(http, asking(model=server.server.model_id, metadata={"user_id": "u"}))
            assert status == 400
            assert "`metadata`: ignored" in error["error"]["message"]


class TestHeaders:
    async def test_a_key_in_x_api_key_opens_the_door_only_where_this_family_is_served(
        self, server: Running, tmp_path: Path
    ) -> None:
        for given, expected in ((server.key, 200), ("sk-wrong", 401), ("\u043a\u043b\u044e\u0447", 401)):
            async with aiohttp.ClientSession(server.origin, headers={"x-api-key": given}) as client:
                status, document, _ = await post(client, asking())
                assert status == expected
                assert status == 200 or document["error"]["type"] == "authentication_error"
        async with running(tmp_path) as plain:
            async with aiohttp.ClientSession(plain.origin, headers={"x-api-key": plain.key}) as client:
                async with client.get("/v1/models") as response:
                    assert (response.status, (await response.json())["error"]["code"]) == (401, "missing_api_key")

    @pytest.mark.parametrize(
        ("names", "is_anthropic"),
        [
            (("anthropic-version", "Authorization"), True),
            (("x-api-key",), True),
            (("x-api-key", "Authorization"), False),
            (("Authorization",), False),
        ],
    )
    async def test_the_list_of_models_has_the_shape_that_the_headers_ask_for(
        self, server: Running, names: tuple[str, ...], is_anthropic: bool
    ) -> None:
        values = {"anthropic-version": "1999-01-01", "x-api-key": server.key, **server.headers}
        headers = {name: values[name] for name in names}
        async with aiohttp.ClientSession(server.origin, headers=headers) as client:
            async with client.get("/v1/models") as response:
                listed = await response.json()
                assert ("request-id" in response.headers) is is_anthropic
            async with client.get("/v1/models/no%2Fsuch") as response:
                assert response.status == 404
                refused = await response.json()
        assert ("has_more" in listed) is is_anthropic
        assert ("object" in listed) is not is_anthropic
        assert (refused.get("type") == "error") is is_anthropic


async def test_an_answer_that_fills_the_context_says_so(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=None, context_size=16))
    async with serving_messages(tmp_path, engine) as server, server.session() as http:
        for stream in (False, True):
            status, answer, _ = await post(http, asking(max_tokens=64_000, stream=stream))
            assert status == 200
            reason = (read_stream(answer) if stream else read_message(answer))[1]
            assert reason == "model_context_window_exceeded"


class TestThinking:
    REPLY = Reply(reasoning="plan it", text="four")

    @pytest.mark.parametrize(
        ("thinking", "blocks"),
        [
            ({"type": "enabled", "budget_tokens": 1024}, [("thinking", "plan it"), ("text", "four")]),
            ({"type": "adaptive", "display": "omitted"}, [("thinking", ""), ("text", "four")]),
            ({"type": "disabled"}, [("text", "four")]),
            (None, [("text", "four")]),
        ],
    )
    async def test_a_thinking_block_is_there_when_it_was_asked_for(
        self, http: aiohttp.ClientSession, engine: SimEngine, thinking: Any, blocks: list[tuple[str, str]]
    ) -> None:
        engine.rules.add(NewRule(reply=self.REPLY))
        _, message, _ = await post(http, asking(thinking=thinking))
        assert [(block["type"], block[block["type"]]) for block in message["content"]] == blocks

    async def test_a_limit_inside_the_thinking_leaves_no_text(
        self, http: aiohttp.ClientSession, engine: SimEngine
    ) -> None:
        engine.rules.add(NewRule(reply=self.REPLY))
        _, message, _ = await post(http, asking(thinking={"type": "adaptive"}, max_tokens=1))
        assert [block["type"] for block in message["content"]] == ["thinking"]
        assert message["stop_reason"] == "max_tokens"
        assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 1}


@pytest.mark.real_model
async def test_a_thinking_model_thinks_as_it_is_told(default_model_path: Path, tmp_path: Path) -> None:
    options = LlamaOptions(
        model_id="thinker",
        path=default_model_path,
        state_folder=tmp_path / "llama",
        context=1024,
        threads=1,
        chat_template=TEMPLATES / "thinking.jinja",
    )
    engine = LlamaEngine(options)
    async with serving_messages(tmp_path, engine, model="thinker") as server, server.session() as http:
        await engine.loaded()
        body = asking(model="thinker", max_tokens=40, temperature=0)
        _, thoughtful, _ = await post(http, {**body, "thinking": {"type": "enabled", "budget_tokens": 8}})
        _, plain, _ = await post(http, body)
        _, streamed, _ = await post(http, {**body, "thinking": {"type": "enabled", "budget_tokens": 8}, "stream": True})

    assert thoughtful["content"][0]["type"] == "thinking"
    assert thoughtful["content"][0]["thinking"]
    assert (
        1 <= thoughtful["usage"]["output_tokens_details"]["thinking_tokens"] <= 16
    )  # the mark that ends it counts too
    assert "thinking" not in {block["type"] for block in plain["content"]}
    assert "think>" not in json.dumps([thoughtful["content"], plain["content"]])
    starts = [event["content_block"]["type"] for event in events_of(streamed) if event["type"] == "content_block_start"]
    assert starts == [block["type"] for block in thoughtful["content"]]
