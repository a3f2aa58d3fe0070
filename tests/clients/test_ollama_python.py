"""The official `ollama` package in profile `roach`: what it does with each answer and each error."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import msgspec
import ollama
import pytest
import pytest_asyncio

from pocketserver.engines.sim.device import GENERIC, SimModel
from pocketserver.engines.sim.rules import RefusalReply, ScriptedCall
from pocketserver.errors import Code, Refusal
from tests.clients.ollama_serving import Served, serving_ollama, simulator
from tests.waiting import until

HI: Any = [{"role": "user", "content": "Say hello."}]
MODEL = "sim-1b"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def parts_of(stream: Any) -> list[Any]:
    """Everything that a streamed call says."""
    return [part async for part in await stream]


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving_ollama(tmp_path) as server:
        yield server


async def test_models_are_listed_with_what_clients_decide_by(served: Served) -> None:
    (listed,) = (await served.sdk.list()).models

    assert listed.model == f"{MODEL}:latest"
    assert listed.size
    assert listed.modified_at
    assert len(listed.digest or "") == 64
    assert listed.details
    assert (listed.details.format, listed.details.family) == ("gguf", "llama")


async def test_a_chat_says_something_and_what_it_took(served: Served) -> None:
    answer = await served.sdk.chat(MODEL, HI, think=False)

    assert answer.message.role == "assistant"
    assert answer.message.content
    assert (answer.model, answer.done, answer.done_reason) == (MODEL, True, "stop")
    assert answer.prompt_eval_count
    assert answer.eval_count == 40
    assert answer.eval_duration
    assert (answer.total_duration or 0) >= answer.eval_duration


async def test_a_stream_joins_to_the_same_text_and_ends_with_done(served: Served) -> None:
    whole = await served.sdk.chat(MODEL, HI, think=False)

    parts = [part async for part in await served.sdk.chat(MODEL, HI, think=False, stream=True)]

    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert {part.message.role for part in parts} == {"assistant"}
    assert parts[-1].eval_count == whole.eval_count


async def test_thinking_is_kept_apart_and_can_be_switched_off(served: Served) -> None:
    unasked = await served.sdk.chat(MODEL, HI)
    hard = await served.sdk.chat(MODEL, HI, think="high")
    none = await served.sdk.chat(MODEL, HI, think=False)

    assert unasked.message.thinking
    assert len(hard.message.thinking or "") > len(unasked.message.thinking)
    assert not none.message.thinking
    assert unasked.message.content == hard.message.content == none.message.content


async def test_streamed_thinking_comes_before_the_answer(served: Served) -> None:
    parts = [part.message async for part in await served.sdk.chat(MODEL, HI, think=True, stream=True)]

    kinds = ["thinking" if part.thinking else "content" for part in parts if part.thinking or part.content]
    assert kinds == sorted(kinds, reverse=True)
    assert set(kinds) == {"thinking", "content"}


async def test_a_model_that_cannot_think_says_so(tmp_path: Path) -> None:
    plain = simulator(preset=_device(SimModel(id="plain", thinking=False, tools=False)))
    async with serving_ollama(tmp_path, plain) as served:
        with pytest.raises(ollama.ResponseError, match='"plain" does not support thinking') as caught:
            await served.sdk.chat("plain", HI, think=True)
        assert caught.value.status_code == 400
        assert (await served.sdk.chat("plain", HI, think=False)).message.content
        with pytest.raises(ollama.ResponseError, match='"plain" does not support tools'):
            await served.sdk.chat("plain", HI, tools=[WEATHER])


def _device(*models: SimModel) -> Any:
    return msgspec.structs.replace(GENERIC, models=models)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_is_called_whole_and_its_result_read(served: Served, streamed: bool) -> None:
    served.says(times=1, tool_calls=(ScriptedCall(name="weather", arguments={"city": "Oslo"}),))
    served.says(times=1, echo=True)
    messages = [{"role": "user", "content": "Weather in Oslo?"}]

    calls = await _calls(served, messages, streamed=streamed)

    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", {"city": "Oslo"})]
    messages += [
        {"role": "assistant", "content": "", "tool_calls": calls},  # type: ignore[dict-item]
        {"role": "tool", "content": "4 C", "tool_name": "weather"},
    ]
    answer = await served.sdk.chat(MODEL, messages, tools=[WEATHER], think=False)
    assert answer.message.content == "Weather in Oslo?"
    assert not answer.message.tool_calls


async def _calls(served: Served, messages: Any, *, streamed: bool) -> list[Any]:
    if not streamed:
        answer = await served.sdk.chat(MODEL, messages, tools=[WEATHER], think=False)
        assert answer.done_reason == "stop"
        return list(answer.message.tool_calls or ())
    parts = [part async for part in await served.sdk.chat(MODEL, messages, tools=[WEATHER], think=False, stream=True)]
    return [call for part in parts for call in part.message.tool_calls or ()]


async def test_arguments_of_300_kb_are_one_line(tmp_path: Path) -> None:
    long = "x" * 300_000
    async with serving_ollama(tmp_path, simulator(context_size=65_536)) as served:
        served.says(tool_calls=(ScriptedCall(name="weather", arguments={"city": long}),))

        (call,) = await _calls(served, HI, streamed=True)

    assert call.function.arguments == {"city": long}


async def test_a_format_is_kept(served: Served) -> None:
    by_schema = await served.sdk.chat(MODEL, HI, format=SCHEMA, think=False)
    anything = await served.sdk.generate(MODEL, "An object, please.", format="json", think=False)

    jsonschema.validate(json.loads(by_schema.message.content or ""), SCHEMA)
    assert isinstance(json.loads(anything.response or ""), dict)


async def test_a_schema_that_cannot_be_held_is_refused_before_the_stream(served: Served) -> None:
    for format_ in ({"type": "strng"}, {"$ref": "#/$defs/missing"}):
        with pytest.raises(ollama.ResponseError) as caught:
            await parts_of(served.sdk.chat(MODEL, HI, format=format_, stream=True))
        assert caught.value.status_code == 400


async def test_one_prompt_is_answered_with_the_numbers_that_continue_it(served: Served) -> None:
    first = await served.sdk.generate(MODEL, "My name is Bo.", think=False)
    parts = [part async for part in await served.sdk.generate(MODEL, "My name is Bo.", think=False, stream=True)]

    assert first.response
    assert first.context
    assert parts[-1].context == first.context
    assert not any(part.context for part in parts[:-1])
    second = await served.sdk.generate(MODEL, "Who am I?", context=first.context, think=False)
    alone = await served.sdk.generate(MODEL, "Who am I?", think=False)
    assert (second.prompt_eval_count or 0) > (alone.prompt_eval_count or 0) + (first.eval_count or 0)


async def test_a_raw_prompt_gives_no_numbers(served: Served) -> None:
    answer = await served.sdk.generate(MODEL, "Once upon", raw=True)

    assert answer.response
    assert answer.context is None


async def test_a_template_of_the_request_writes_the_prompt(served: Served) -> None:
    served.says(echo=True)

    answer = await served.sdk.generate(
        MODEL, "hi", system="S", template="<{{ .System }}>{{ .Prompt }}: {{ .Response }}"
    )

    assert (answer.response, answer.thinking) == ("<S>hi: ", None)
    assert answer.context
    with pytest.raises(ollama.ResponseError, match="template") as caught:
        await served.sdk.generate(MODEL, "hi", template="{{ .Tools }}{{ slice .Messages 1 }}")
    assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("context", "status"),
    [([], 200), ([999_999_999], 400), ([-1], 400), (["a"], 400), ([1] * 10_000, 200), (list(range(10_000)), 200)],
)
async def test_numbers_of_no_answer_are_refused_or_read_as_text(served: Served, context: Any, status: int) -> None:
    body = {"model": MODEL, "prompt": "hi", "context": context, "stream": False}

    found, answer = await served.post("/api/generate", body)

    assert found == status
    if status == 400:
        assert "context" in json.loads(answer)["error"]


async def test_options_reach_the_engine(served: Served) -> None:
    short = await served.sdk.chat(MODEL, HI, options={"num_predict": 3}, think=False)
    served.says(text="one two. three")
    stopped = await served.sdk.chat(MODEL, HI, options={"stop": ["."], "num_predict": -1}, think=False)

    assert (short.eval_count, short.done_reason) == (3, "length")
    assert (stopped.message.content, stopped.done_reason) == ("one two", "stop")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"stop": "\n\n"}, 400),
        ({"num_ctx": "4096"}, 400),
        ({"top_k": 40.0}, 200),
        ({"temperature": "hot"}, 400),
        ({"tfs_z": 1, "mirostat": 0, "made_up": True}, 200),
        ({"num_predict": -1, "stop": ["."]}, 200),
        (None, 200),
        ([], 400),
        ({"seed": None}, 200),
    ],
)
async def test_options_of_a_wrong_type_are_named_and_unknown_ones_ignored(
    served: Served, options: Any, status: int
) -> None:
    body = {"model": MODEL, "prompt": "hi", "stream": False, "options": options}

    found, answer = await served.post("/api/generate", body)

    assert found == status, answer
    if status == 400 and isinstance(options, dict):
        assert f'option "{next(iter(options))}" must be of type' in json.loads(answer)["error"]


async def test_vectors_have_length_one_and_come_in_order(served: Served) -> None:
    both = await served.sdk.embed(MODEL, ["one", "two"])
    one = await served.sdk.embed(MODEL, "one")
    cut = await served.sdk.embed(MODEL, "one", dimensions=8)
    old = await served.sdk.embeddings(MODEL, "one")

    assert one.embeddings == both.embeddings[:1]
    assert both.prompt_eval_count
    assert sum(x * x for x in one.embeddings[0]) == pytest.approx(1.0)
    assert len(cut.embeddings[0]) == 8
    assert sum(x * x for x in cut.embeddings[0]) == pytest.approx(1.0)
    assert list(old.embedding) == list(one.embeddings[0])


@pytest.mark.parametrize("given", ["", [], None])
async def test_nothing_to_embed_is_no_vector(served: Served, given: Any) -> None:
    status, body = await served.post("/api/embed", {"model": MODEL, "input": given})

    assert status == 200
    assert json.loads(body)["embeddings"] == []
    assert await served.post("/api/embeddings", {"model": MODEL, "prompt": ""}) == (200, b'{"embedding":[]}')


async def test_a_text_longer_than_the_context_is_cut_only_where_that_is_wished(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path, simulator(context_size=32)) as served:
        long = "word " * 64
        cut, short = await served.sdk.embed(MODEL, long), await served.sdk.embed(MODEL, "word " * 32)
        assert (cut.prompt_eval_count, cut.embeddings) == (32, short.embeddings)
        assert await served.post("/api/embed", {"model": MODEL, "input": long, "truncate": False}) == (
            400,
            b'{"error":"the input length exceeds the context length"}',
        )
        with pytest.raises(ollama.ResponseError, match=r"input\[1\]"):
            await served.sdk.embed(MODEL, ["ok", long], truncate=False)


@pytest.mark.parametrize("given", [[1, 2], [["a"]], {"a": 1}, 3, ["a", None]])
async def test_what_is_no_text_cannot_be_embedded(served: Served, given: Any) -> None:
    status, body = await served.post("/api/embed", {"model": MODEL, "input": given})

    assert (status, json.loads(body)) == (400, {"error": "invalid input type"})


async def test_a_model_is_shown_with_all_that_clients_read(served: Served) -> None:
    shown = await served.sdk.show(MODEL)

    assert shown.modelinfo
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == 8192
    assert {"completion", "tools", "thinking", "embedding"} == set(shown.capabilities or ())
    assert (shown.modelfile or "").startswith("FROM ")
    assert shown.template
    assert (await served.post("/api/show", {"name": MODEL}))[0] == 200


async def test_a_model_is_made_copied_used_and_deleted(served: Served) -> None:
    await served.sdk.create("pirate", from_=MODEL, system="Arr.", parameters={"num_predict": 4, "stop": "x"})
    await served.sdk.copy("pirate", "buccaneer")
    await served.sdk.delete("pirate")

    names = {model.model for model in (await served.sdk.list()).models}
    assert names == {f"{MODEL}:latest", "buccaneer:latest"}
    shown = await served.sdk.show("buccaneer")
    assert "num_predict" in (shown.parameters or "")
    assert 'SYSTEM """Arr."""' in (shown.modelfile or "") or "SYSTEM Arr." in (shown.modelfile or "")
    answer = await served.sdk.chat("Buccaneer:LATEST", HI, think=False)
    assert (answer.model, answer.eval_count) == ("Buccaneer:LATEST", 4)
    plain = await served.sdk.chat(MODEL, HI, think=False)
    assert (answer.prompt_eval_count or 0) > (plain.prompt_eval_count or 0)
    with pytest.raises(ollama.ResponseError, match="model 'pirate' not found"):
        await served.sdk.show("pirate")


async def test_a_model_over_a_made_one_keeps_what_it_does_not_change(served: Served) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    await served.sdk.create("c1", from_=MODEL, system="S", parameters={"num_predict": 3})
    await served.sdk.create("c2", from_="c1", messages=turns)
    await served.sdk.create("c1", from_="c1", system="")

    first, second = await served.sdk.chat("c1", HI, think=False), await served.sdk.chat("c2", HI, think=False)
    plain = await served.sdk.chat(MODEL, HI, think=False)
    assert (first.eval_count, second.eval_count) == (3, 3)
    assert first.prompt_eval_count == plain.prompt_eval_count
    assert (second.prompt_eval_count or 0) > (plain.prompt_eval_count or 0)
    own = [{"role": "system", "content": "S"}, *turns, *HI]
    assert (await served.sdk.chat(MODEL, own, think=False)).prompt_eval_count == second.prompt_eval_count
    assert (await served.sdk.show("c2")).capabilities == (await served.sdk.show(MODEL)).capabilities


async def test_a_modelfile_makes_a_model_too(served: Served) -> None:
    modelfile = f"FROM {MODEL}\nSYSTEM Be brief.\nPARAMETER num_predict 2\nMESSAGE user a\nMESSAGE assistant b\n"
    status, body = await served.post("/api/create", {"name": "brief", "modelfile": modelfile})

    lines = [json.loads(line) for line in body.splitlines()]
    assert (status, lines[-1]) == (200, {"status": "success"})
    assert (await served.sdk.chat("brief", HI, think=False)).eval_count == 2
    status, body = await served.post("/api/create", {"name": "bad", "modelfile": f"FROM {MODEL}\nPARAMETER x y\n"})
    assert status == 400
    assert "line 2" in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "c3"}, 400, "neither 'from' or 'files' was specified"),
        ({"model": "c4", "from": "nope"}, 404, "not found"),
        ({"model": "c5", "from": MODEL, "parameters": {"num_ctx": "many"}}, 400, "num_ctx"),
        ({"from": MODEL}, 400, "model is required"),
        ({"model": "../../x", "from": MODEL}, 400, "invalid model name"),
        ({"model": "c6", "files": {"../../m.gguf": "sha256:" + "0" * 64}}, 400, "file path must be relative"),
        ({"model": "c7", "files": {"m.gguf": "sha256:" + "0" * 64}}, 400, "no uploads"),
        ({"model": "c8", "from": MODEL, "adapters": {"a": "b"}}, 400, "adapters"),
        ({"model": "c9", "from": MODEL, "quantize": "q8_0"}, 400, "quantize"),
        ({"model": "c9", "from": MODEL, "messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].role"),
    ],
)
async def test_what_cannot_be_made_is_refused_before_the_stream(
    served: Served, body: Any, status: int, words: str
) -> None:
    found, answer = await served.post("/api/create", body)

    assert found == status
    assert words in json.loads(answer)["error"]


async def test_a_pull_tells_how_far_it_is(served: Served) -> None:
    steps = [step async for step in await served.sdk.pull(MODEL, stream=True)]

    assert steps[0].status == "pulling manifest"
    assert steps[-1].status == "success"
    growing = [step.completed or 0 for step in steps if step.digest]
    assert growing == sorted(growing)
    assert (await served.sdk.pull(MODEL)).status == "success"


@pytest.mark.parametrize(
    "name", ["nope", "evil.example:8443/x/y", "http://169.254.169.254/latest", "file:///etc/passwd"]
)
async def test_only_the_catalogue_can_be_pulled(served: Served, name: str) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        await parts_of(served.sdk.pull(name, stream=True))

    assert caught.value.status_code == 404


async def test_names_are_compared_without_case_and_tag(served: Served) -> None:
    for name in (MODEL, f"{MODEL}:latest", MODEL.upper(), f"library/{MODEL}"):
        assert (await served.sdk.chat(name, HI, options={"num_predict": 1})).model == name
    for name in (f"{MODEL}:", ":latest", "ti ny", f"{MODEL}:a:b", "../x"):
        with pytest.raises(ollama.ResponseError, match="invalid model name"):
            await served.sdk.chat(name, HI)
    await served.sdk.copy(MODEL, MODEL.capitalize())
    await served.sdk.copy(MODEL, "other")
    await served.sdk.copy(MODEL, "Other")
    assert len((await served.sdk.list()).models) == 2
    for source, destination in ((MODEL, "a/../../b"), (MODEL, "C:\\x"), ("/tmp/x", "y")):
        with pytest.raises(ollama.ResponseError, match="is invalid"):
            await served.sdk.copy(source, destination)
    with pytest.raises(ollama.ResponseError, match='model "nope" not found'):
        await served.sdk.copy("nope", "y")


KEPT = [(-1, None), (300, 300), (0.5, 0.5), ("5m", 300), ("1h30m", 5400), ("-1m", None), (None, 300), ("", 300)]


@pytest.mark.parametrize(("keep_alive", "seconds"), KEPT)
async def test_a_model_stays_as_long_as_was_asked(tmp_path: Path, keep_alive: Any, seconds: float | None) -> None:
    async with serving_ollama(tmp_path, simulator(keep_alive_seconds=300.0, tokens_per_second=1000.0)) as served:
        now = time.time()
        body = {"model": MODEL, "prompt": "hi", "stream": False, "keep_alive": keep_alive}
        assert (await served.post("/api/generate", body))[0] == 200

        (kept,) = (await served.sdk.ps()).models
        assert kept.expires_at
        if seconds is None:
            assert kept.expires_at.year == 9999
        else:
            assert kept.expires_at.timestamp() - now == pytest.approx(seconds, abs=20)


@pytest.mark.parametrize("keep_alive", [0, "0", "0s"])
async def test_zero_unloads_right_after_the_answer(served: Served, keep_alive: Any) -> None:
    answer = await served.sdk.chat(MODEL, HI, keep_alive=keep_alive, think=False)

    assert answer.eval_count == 40
    await until(lambda: not served.running.server.door.loaded())
    assert not (await served.sdk.ps()).models
    assert (await served.sdk.chat(MODEL, HI)).message.content


@pytest.mark.parametrize("keep_alive", ["-1", "300", "abc", True, [1]])
async def test_a_keep_alive_without_a_unit_is_refused(served: Served, keep_alive: Any) -> None:
    status, body = await served.post("/api/generate", {"model": MODEL, "prompt": "hi", "keep_alive": keep_alive})

    assert status == 400
    assert '"-1m"' in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/api/generate", {}, {"response": ""}),
        ("/api/generate", {"prompt": "", "stream": True}, {"response": ""}),
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        ("/api/chat", {}, {"message": {"role": "assistant", "content": ""}}),
    ],
)
async def test_nothing_to_say_only_loads_or_unloads(served: Served, path: str, fields: Any, said: Any) -> None:
    for more, reason, count in (({}, "load", 1), ({"keep_alive": 0}, "unload", 0), ({"keep_alive": 0}, "unload", 0)):
        status, body = await served.post(path, {"model": MODEL, **fields, **more})
        found = json.loads(body)
        assert status == 200
        assert found.pop("created_at").endswith("Z")
        assert found == {"model": MODEL, **said, "done": True, "done_reason": reason}
        assert len((await served.sdk.ps()).models) == count


async def test_unloading_waits_for_the_running_answer(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path, simulator(tokens_per_second=100.0)) as served:
        running = asyncio.create_task(served.sdk.chat(MODEL, HI, think=False))
        await until(lambda: served.engine.running == 1)

        unloaded = await served.sdk.generate(MODEL, "", keep_alive=0)

        assert running.done()
        assert (await running).eval_count == 40
        assert unloaded.done_reason == "unload"


async def test_a_model_that_is_not_there_is_a_404_before_any_stream(served: Served) -> None:
    for asking in (served.sdk.chat("nope", HI), parts_of(served.sdk.chat("nope", HI, stream=True))):
        with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as caught:
            await asking
        assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match='model "nope" not found, try pulling it first'):
        await served.sdk.embed("nope", "x")
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found"):
        await served.sdk.delete("nope")


async def test_images_are_a_400_that_says_text_only(served: Served) -> None:
    with pytest.raises(ollama.ResponseError, match="text only") as caught:
        await served.sdk.chat(MODEL, [{"role": "user", "content": "what is it?", "images": ["aGFsbG8="]}])

    assert caught.value.status_code == 400


async def test_a_full_queue_is_a_503_in_ollamas_words(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path, simulator(tokens_per_second=20.0), max_queue=1) as served:
        running = asyncio.create_task(served.sdk.chat(MODEL, HI))
        await until(lambda: served.engine.running == 1)

        with pytest.raises(ollama.ResponseError, match="server busy, please try again") as caught:
            await served.sdk.chat(MODEL, HI)

        assert caught.value.status_code == 503
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("code", "status"),
    [(Code.INSUFFICIENT_MEMORY, 500), (Code.WORKER_LOST, 500), (Code.GENERATION_STALLED, 504), (Code.HOST_GONE, 503)],
)
async def test_a_refusal_has_its_status_whether_streamed_or_not(served: Served, code: Code, status: int) -> None:
    served.says(refusal=RefusalReply(code=code, message="because"))

    for streamed in (False, True):
        body = {"model": MODEL, "prompt": "x", "stream": streamed}
        assert await served.post("/api/generate", body) == (status, b'{"error":"because"}')


async def test_an_error_in_mid_stream_is_the_last_line_and_the_sdk_raises(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path, simulator(tokens_per_second=50.0)) as served:
        stream = aiter(await served.sdk.chat(MODEL, HI, think=False, stream=True))
        for _ in range(3):
            assert not (await anext(stream)).done

        served.engine.interrupt(Refusal(Code.HOST_GONE, "the device went to sleep"))

        with pytest.raises(ollama.ResponseError, match="the device went to sleep"):
            _ = [part async for part in stream]


async def test_hanging_up_in_mid_stream_frees_the_model(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path, simulator(tokens_per_second=20.0)) as served:
        async for _ in await served.sdk.chat(MODEL, HI, stream=True):
            break
        stream = await served.sdk.generate(MODEL, "x", stream=True)
        await anext(aiter(stream))
        await served.sdk.close()
        await until(lambda: served.engine.running == 0)


async def test_every_line_is_json_and_characters_are_whole(served: Served) -> None:
    served.engine.script([b"\xf0\x9f", b"\x91\xa9\xe2", b"\x80\x8d\xf0\x9f\x92\xbb", b"\xe6\x97", b"\xa5\xe6\x9c\xac"])

    _, body = await served.post("/api/chat", {"model": MODEL, "messages": HI, "think": False})

    assert body.endswith(b"\n")
    lines = [json.loads(line) for line in body[:-1].split(b"\n")]
    assert "".join(line["message"]["content"] for line in lines) == "\U0001f469\u200d\U0001f4bb\u65e5\u672c"


async def test_old_turns_are_left_out_where_they_do_not_fit(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path) as served:
        served.says(echo=True)
        turns = [
            {"role": role, "content": f"turn {number} " + "word " * 80}
            for number in range(12)
            for role in ("user", "assistant")
        ]
        messages = [{"role": "system", "content": "SYS-MARK"}, *turns, {"role": "user", "content": "LAST-MARK"}]
        options = {"num_ctx": 512, "num_predict": 8}

        answer = await served.sdk.chat(MODEL, messages, options=options, think=False)

        assert answer.message.content == "LAST-MARK"
        assert 512 - 8 - 200 < (answer.prompt_eval_count or 0) <= 512 - 8
        body = {"model": MODEL, "messages": messages, "options": options}
        status, said = await served.post("/api/chat", {**body, "truncate": False})
        assert status == 400
        assert "512" in json.loads(said)["error"]
        body["messages"] = [{"role": "system", "content": "word " * 600}, messages[-1]]
        assert (await served.post("/api/chat", body))[0] == 400


async def test_a_conversation_longer_than_the_context_is_shortened_too(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path, simulator(context_size=256)) as served:
        messages = [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(20)]

        answer = await served.sdk.chat(MODEL, messages, think=False)

        assert 100 < (answer.prompt_eval_count or 0) < 256
        assert (await served.post("/api/chat", {"model": MODEL, "messages": messages, "truncate": False}))[0] == 400


async def test_what_was_not_done_as_asked_is_told_in_the_hub(tmp_path: Path) -> None:
    async with serving_ollama(tmp_path, profile="hub") as served:
        body = {"model": MODEL, "prompt": "hi", "stream": False, "options": {"mirostat": 1, "num_ctx": 10_000_000}}
        async with served.running.session() as http, http.post("/api/generate", json={**body, "odd": 1}) as response:
            found = await response.json()

        assert set(found["warnings"]) == {
            "odd:ignored",
            "options.mirostat:ignored",
            "options.num_ctx:clamped to 8192",
        }
        assert "options.mirostat:ignored" in response.headers["x-pocketserver-warnings"]


async def test_a_generic_name_means_the_loaded_model_in_the_hub_alone(served: Served, tmp_path: Path) -> None:
    ask = {"model": "gpt-4o-mini", "messages": HI, "stream": False}
    assert (await served.post("/api/chat", ask))[0] == 404

    async with (
        serving_ollama(tmp_path / "hub", profile="hub") as hub,
        hub.running.session() as http,
        http.post("/api/chat", json=ask) as response,
    ):
        found = await response.json()
        assert (response.status, found["model"]) == (200, "gpt-4o-mini")
        assert found["warnings"] == [f"model:gpt-4o-mini was answered by {MODEL}"]


async def test_a_request_without_a_model_means_the_loaded_one_only_in_the_hub(served: Served, tmp_path: Path) -> None:
    status, body = await served.post("/api/chat", {"messages": HI})
    assert (status, json.loads(body)) == (400, {"error": "model is required"})

    async with (
        serving_ollama(tmp_path / "hub", profile="hub") as hub,
        hub.running.session() as http,
        http.post("/api/chat", json={"messages": HI, "stream": False}) as response,
    ):
        assert (await response.json())["model"] == MODEL


async def test_what_clients_ask_first_is_answered(served: Served) -> None:
    async with aiohttp.ClientSession(served.running.origin) as http:
        for method, path in (("GET", "/"), ("HEAD", "/"), ("GET", "/api/version"), ("HEAD", "/api/version"),
                             ("HEAD", "/api/tags")):  # fmt: skip
            async with http.request(method, path) as response:
                assert response.status == 200
        async with http.get("/") as response:
            assert await response.text() == "Ollama is running"
        async with http.get("/api/version") as response:
            assert [int(part) for part in (await response.json())["version"].split(".")] >= [0, 6, 4]
        async with http.get("/api/system/ai/providers") as response:
            port = served.running.server.port
            assert await response.json() == {
                "providers": [{"id": "roachinference", "base_url": f"http://127.0.0.1:{port}", "port": port}]
            }
        for path, status in (
            ("/api/nothing", 404),
            ("/api/blobs/sha256:0", 404),
            ("/api/push", 404),
            ("/api/tags", 405),
        ):
            async with http.post(path) as response:
                assert response.status == status
                assert isinstance((await response.json())["error"], str)
