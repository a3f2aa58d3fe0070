"""What a client does, with the official `openai` package: chat, stream, structured output, tools, errors.

OPENAI_BASE_URL=http://192.168.1.20:8080/v1 OPENAI_API_KEY=sk-... python chat_openai.py

The package reads both variables by itself, and it tries again by itself, as often as `max_retries` says, when the model
is busy with another request (429 `model_busy`): it waits as long as the server's Retry-After says.
"""

import json
from typing import Any

from openai import APIStatusError, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "celsius": {"type": "integer", "minimum": -90, "maximum": 60},
    },
    "required": ["city", "celsius"],
    "additionalProperties": False,
}
WEATHER: ChatCompletionToolParam = {
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


def ask(client: OpenAI, question: str) -> str:
    answer = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": question}], max_tokens=60
    )
    return answer.choices[0].message.content or ""


def show_stream(client: OpenAI, question: str) -> None:
    """Print pieces as they come. A stream without a finish_reason has broken off, whatever it looks like."""
    finished = False
    stream = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": question}], max_tokens=60, stream=True
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
            finished = finished or choice.finish_reason is not None
    print()
    if not finished:
        raise RuntimeError("The answer broke off.")


def structured(client: OpenAI, question: str) -> dict[str, Any]:
    answer = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": question}],
        max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}},
    )
    found: dict[str, Any] = json.loads(answer.choices[0].message.content or "")
    return found


def get_weather(city: str) -> dict[str, Any]:
    """A tool as the model sees it. A real one would look out of the window."""
    return {"city": city, "celsius": 21}


def with_tools(client: OpenAI, question: str) -> str:
    """Ask, run what the model wants run, tell it the results, and so on until it answers in words."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    first = True
    while True:
        # small models forget to call when they may choose; afterwards they are to answer
        choice: Any = "required" if first else "none"
        answer = client.chat.completions.create(
            model="default",
            messages=messages,
            max_tokens=100,
            tools=[WEATHER],
            tool_choice=choice,
            parallel_tool_calls=False,
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append({"role": "assistant", "content": message.content, "tool_calls": message.tool_calls})  # type: ignore[typeddict-item]
        for call in message.tool_calls:
            assert call.type == "function"
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
        first = False


def main() -> None:
    with OpenAI(max_retries=5) as client:
        print("chat:", ask(client, "Say hello."))
        print("stream: ", end="")
        show_stream(client, "Count to three.")
        print("structured:", json.dumps(structured(client, "The weather of a city, made up.")))
        print("tools:", with_tools(client, "How warm is it in Oslo?"))
        try:
            client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "Say hello."}])
        except APIStatusError as error:
            print("error:", error.code)


if __name__ == "__main__":
    main()
