"""The server under the standard tests: a simulator told what they expect of a clever model, or a real small model."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import ServerProcess, serving, simulating

ASKED: list[dict[str, Any]] = [
    {"regex": r"magic_function\(3\)", "calls": [("magic_function", {"input": 3})]},
    {"last_message": "magic_function_no_args()", "calls": [("magic_function_no_args", {})]},
    {"last_message": "generate a Pirate greeting", "calls": [("greeting_generator", {"answer_style": "Pirate"})]},
    {"last_message": "weather in San Francisco", "calls": [("get_weather", {"location": "San Francisco, CA"})]},
    {
        "last_message": "你好啊集团",
        "calls": [("unicode_customer", {"customer_name": "你好啊集团", "description": "x"})],
    },
    {
        "last_message": "こんにちは株式会社",
        "calls": [("unicode_customer", {"customer_name": "こんにちは株式会社", "description": "x"})],
    },
    {
        "last_message": "Return nothing other than JSON",
        "text": '{"setup": "Why do cats purr?", "punchline": "It works."}',
    },
]
"""What the standard tests say, and what they expect for it. Whatever is forced by the request alone is left out."""


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[ServerProcess]:
    model = os.environ.get("POCKETSERVER_TEST_MODEL")
    if model is None:
        with simulating("--device", "ipad-pro-m5") as simulator:
            for asked in ASKED:
                simulator.reply(**asked)
            yield simulator
    else:
        template = os.environ["POCKETSERVER_TEST_TEMPLATE"]
        with serving("serve", "--model", model, "--chat-template", template, "--context", "2048") as real:
            yield real


@pytest.fixture(autouse=True)
def _known_to_the_test(request: pytest.FixtureRequest, server: ServerProcess) -> None:
    """The standard classes ask for their parameters by properties, which no fixture reaches."""
    if request.cls is not None:
        request.cls.server = server
