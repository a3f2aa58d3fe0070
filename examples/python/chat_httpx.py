"""What a client of pocketserver does, with httpx alone: chat, stream, structured output, tools, errors, trying again.

OPENAI_BASE_URL=http://192.168.1.20:8080/v1 OPENAI_API_KEY=sk-... python chat_httpx.py
"""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx

TRIES = 6
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "celsius": {"type": "integer", "minimum": -90, "maximum": 60},
    },
    "required": ["city", "celsius"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class ServerError(Exception):
    """What the server says is wrong: a `code` for programs, a sentence for people."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


def post(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    """Send a request; while the model is busy with another one, wait as long as the server says and send it again."""
    for attempt in range(TRIES):
        response = client.send(client.build_request("POST", "chat/completions", json=body), stream=True)
        if response.status_code != 429 and "Retry-After" not in response.headers:
            break
        if attempt < TRIES - 1:
            response.close()
            time.sleep(float(response.headers.get("Retry-After", 2**attempt)))
    if response.is_error:
        response.read()
        raise ServerError(response.json()["error"])
    return response


def ask(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The assistant's message."""
    response = post(client, body)
    response.read()
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def stream(client: httpx.Client, body: dict[str, Any]) -> Iterator[str]:
    """The answer, piece by piece. One without `[DONE]` at its end has broken off, whatever it looks like."""
    response = post(client, {**body, "stream": True})
    try:
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ServerError(chunk["error"])
                for choice in chunk["choices"]:
                    yield choice["delta"].get("content") or ""
    finally:
        response.close()
    raise ServerError({"code": "incomplete", "message": "The answer broke off."})


def get_weather(city: str) -> dict[str, Any]:
    """A tool as the model sees it. A real one would look out of the window."""
    return {"city": city, "celsius": 21}


def with_tools(client: httpx.Client, question: str) -> str:
    """Ask, run what the model wants run, tell it the results, and so on until it answers in words."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    choice = "required"  # small models forget to call when they may choose; afterwards they are to answer
    while True:
        tools = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
        message = ask(client, {"model": "default", "messages": messages, "max_tokens": 100, **tools})
        messages.append(message)
        for call in message.get("tool_calls") or []:
            result = get_weather(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
        if not message.get("tool_calls"):
            return str(message["content"])
        choice = "none"


def main() -> None:
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], headers=key, timeout=120) as client:
        hello = {"model": "default", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 60}
        print("chat:", ask(client, hello)["content"])

        print("stream: ", end="")
        count = {"model": "default", "messages": [{"role": "user", "content": "Count to three."}], "max_tokens": 60}
        for piece in stream(client, count):
            print(piece, end="", flush=True)
        print()

        answer = ask(
            client,
            {
                "model": "default",
                "messages": [{"role": "user", "content": "The weather of a city, made up."}],
                "max_tokens": 100,
                "response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}},
            },
        )
        print("structured:", json.dumps(json.loads(answer["content"])))

        print("tools:", with_tools(client, "How warm is it in Oslo?"))

        try:
            ask(client, {**hello, "model": "no-such-model"})
        except ServerError as error:
            print("error:", error.code)


if __name__ == "__main__":
    main()
