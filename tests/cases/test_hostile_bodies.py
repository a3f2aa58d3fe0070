"""Any body at all: an answer or a refusal as JSON, never a fault of ours, and the server lives on."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases.asking import PATH, ask
from tests.serving import Running, running

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**320), max_value=10**320)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(["user", "assistant", "tool", "text", "function", "json_schema", "object", "required", "auto"])


def near(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object of about the right shape, each field right or anything."""
    return st.fixed_dictionaries({}, optional={name: field | ANY | WORDS for name, field in fields.items()})


PART = near(type=WORDS, text=st.text(max_size=5))
FUNCTION = near(name=WORDS, arguments=st.sampled_from(["{}", "[", "5"]), parameters=near(type=WORDS, properties=ANY))
CALL = near(id=st.text(max_size=4), type=WORDS, function=FUNCTION)
MESSAGE = near(
    role=WORDS, content=st.text(max_size=9) | st.lists(PART, max_size=2), tool_calls=st.lists(CALL, max_size=2)
)
BODY = near(
    messages=st.lists(MESSAGE, max_size=3),
    model=st.just("default"),
    stream=st.booleans(),
    stream_options=near(include_usage=st.booleans()),
    max_tokens=st.integers(),
    temperature=st.floats(),
    top_k=st.integers(),
    seed=st.integers(),
    n=st.integers(),
    stop=st.lists(st.text(max_size=3), max_size=3),
    logit_bias=st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
    logprobs=st.booleans(),
    top_logprobs=st.integers(),
    tools=st.lists(near(type=WORDS, function=FUNCTION), max_size=2),
    tool_choice=near(type=WORDS, function=FUNCTION),
    response_format=near(type=WORDS, json_schema=near(name=WORDS, schema=ANY)),
    reasoning_effort=WORDS,
    chat_template_kwargs=ANY,
)


async def check(server: Running, http: aiohttp.ClientSession, data: bytes) -> None:
    async with asyncio.timeout(20), http.post(PATH, data=data) as response:
        body = await response.read()
    assert response.status in {200, 400, 404}, (data, body)
    if response.status != 200:
        assert {"message", "type", "param", "code"} <= set(json.loads(body)["error"])
    assert not server.server.door.busy


async def check_all(home: Path, bodies: list[bytes]) -> None:
    async with running(home) as server, server.session() as http:
        for data in bodies:
            await check(server, http, data)


@given(bodies=st.lists(BODY.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=60), max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_body_is_answered_or_refused(tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]) -> None:
    asyncio.run(check_all(tmp_path_factory.mktemp("home"), bodies))


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ('"user":' + "[" * 100_000 + "]" * 100_000, "invalid_json"),
        ('"user":' + '{"a":' * 5000 + "1" + "}" * 5000, "invalid_json"),
        ('"max_tokens":1' + "0" * 5000, "invalid_parameter"),
        ('"temperature":1' + "0" * 400, "invalid_parameter"),
        ('"seed":1e400', "invalid_parameter"),
    ],
)
async def test_depth_and_size_are_refused_not_suffered(tmp_path: Path, field: str, code: str) -> None:
    async with running(tmp_path) as server, server.session() as http:
        data = f'{{"messages":[{{"role":"user","content":"x"}}],{field}}}'
        async with http.post(PATH, data=data.encode()) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, code)
        assert (await ask(http)).status == 200
