"""The pytest fixture as a client developer uses it: with the synchronous SDK, in a plain test."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI

from pocketserver.errors import UsageError
from pocketserver.testing.device import SimulatedServer

HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(pocketserver: SimulatedServer) -> Any:
    with OpenAI(base_url=pocketserver.base_url, api_key=pocketserver.api_key, max_retries=0) as sdk:
        yield sdk


def ask(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "default", "messages": HI, **fields})


def test_a_reply_is_what_the_client_reads(pocketserver: SimulatedServer, client: OpenAI) -> None:
    pocketserver.reply("Hello!")

    assert ask(client).choices[0].message.content == "Hello!"
    assert pocketserver.requests[-1].json["messages"] == HI
    assert pocketserver.api_key not in str(pocketserver.requests[-1].headers)


def test_a_reply_can_be_tool_calls_tokens_or_reasoning(pocketserver: SimulatedServer, client: OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    pocketserver.reply(tool_calls=[("add", {"a": 1})], match={"has_tools": True})
    pocketserver.reply(tokens=["a", b"\xf0\x9f", b"\x91\x8b"], match={"has_tools": False})

    [call] = ask(client, tools=[tool]).choices[0].message.tool_calls

    assert (call.function.name, call.function.arguments.replace(" ", "")) == ("add", '{"a":1}')
    assert ask(client).choices[0].message.content == "a\U0001f44b"


def test_the_next_request_can_fail_with_any_code(pocketserver: SimulatedServer, client: OpenAI) -> None:
    pocketserver.fail_next("model_busy")

    with pytest.raises(openai.RateLimitError) as caught:
        ask(client)
    assert caught.value.code == "model_busy"
    assert ask(client).choices[0].message.content


def test_a_wrong_word_is_answered_with_the_right_ones(pocketserver: SimulatedServer) -> None:
    with pytest.raises(UsageError, match="Did you mean model_busy"):
        pocketserver.fail_next("busy")
    with pytest.raises(UsageError, match="It has: fault, code, message, after_tokens"):
        pocketserver.fail_next("stall", after=3)
    with pytest.raises(UsageError, match="Allowed: auto, critical, fair, nominal, serious"):
        pocketserver.device.thermal = "boiling"
    with pytest.raises(UsageError, match="Allowed: max, a number"):
        pocketserver.device.speed = "fast"
    with pytest.raises(UsageError, match="It has: thermal, low_power"):
        pocketserver.device.termal = "serious"


def test_the_device_can_be_made_hot_and_unplugged(pocketserver: SimulatedServer, client: OpenAI) -> None:
    pocketserver.device.thermal = "serious"
    assert pocketserver.device.thermal == "serious"

    pocketserver.device.network = "gone"
    with pytest.raises(openai.APIConnectionError):
        ask(client)
    pocketserver.device.network = "up"
    assert ask(client).choices[0].message.content


def test_a_client_that_obeys_is_resilient_and_one_that_does_not_is_told(
    pocketserver: SimulatedServer, client: OpenAI
) -> None:
    pocketserver.fail_next("invalid_parameter")
    with pytest.raises(openai.BadRequestError):
        ask(client)
    pocketserver.assert_resilient()

    pocketserver.fail_next("model_busy", retry_after=30)
    with pytest.raises(openai.RateLimitError):
        ask(client, seed=2)
    ask(client, seed=2)
    with pytest.raises(AssertionError, match="asked to wait 30 s"):
        pocketserver.assert_resilient()


def test_each_test_has_a_fresh_device(pocketserver: SimulatedServer) -> None:
    assert pocketserver.requests == []
    assert pocketserver.verdict().resilient


def test_the_factory_takes_devices_scenarios_and_settings(
    pocketserver_factory: Callable[..., SimulatedServer],
) -> None:
    phone = pocketserver_factory(device="iphone-16-pro", admission="queue", max_queue=2)
    other = pocketserver_factory(scenario="flaky-wifi")

    assert phone.base_url != other.base_url
    assert phone.device.scenario is None
    assert other.device.scenario == "flaky-wifi"
    with pytest.raises(AttributeError, match="thermal"):
        phone.device.temperature  # noqa: B018 - asking is the test


def test_a_fresh_server_costs_little(pocketserver_factory: Callable[..., SimulatedServer]) -> None:
    started = time.monotonic()
    for _ in range(20):
        pocketserver_factory()

    assert time.monotonic() - started < 20  # a few milliseconds each; only a new process for each would meet this


def test_the_plugin_itself_imports_nothing_heavy() -> None:
    code = (
        "import sys, pocketserver.testing.plugin\n"
        "print(sorted({'aiohttp', 'zeroconf', 'msgspec', 'prometheus_client', 'asyncio'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "aiohttp" not in out
    assert "msgspec" not in out
