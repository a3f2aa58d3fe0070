"""Ollama's shared fields: names, `keep_alive`, `think`, `format`, and the options with their types."""

import pytest

from pocketserver.chat import AnyJsonObject, JsonSchema, JsonValue
from pocketserver.errors import Code, Refusal
from pocketserver.models.options import OPTIONS
from pocketserver.wire import ollama_errors, ollama_fields, ollama_options


def silent(_field: str, what: str) -> None:
    pytest.fail(f"nothing to say, but: {what}")


def test_every_code_has_a_status() -> None:
    assert set(ollama_errors.SHAPES) == set(Code)


def test_a_full_queue_is_told_in_the_words_that_programs_compare() -> None:
    errors = ollama_errors.OllamaErrors(statuses={}, codes={})

    response = errors.response(Refusal(Code.QUEUE_FULL, "in our words", retry_after=7))

    assert response.status == 503
    assert response.headers["Retry-After"] == "7"
    assert response.body == b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None), ("", None), (0, 0.0), (300, 300.0), (0.5, 0.5), ("5m", 300.0), ("1h30m", 5400.0),
        ("300ms", 0.3), ("0", 0.0), ("0s", 0.0), ("1.5h", 5400.0), ("2us", 2e-6), ("+3s", 3.0),
    ],
)  # fmt: skip
def test_keep_alive_is_read_in_all_its_forms(given: JsonValue, seconds: float | None) -> None:
    assert ollama_fields.keep_alive(given) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("given", [-1, -0.5, "-1m", "-1h30m", 1e12, "9999999h", 10**400])
def test_a_negative_or_endless_keep_alive_is_for_ever(given: JsonValue) -> None:
    assert ollama_fields.keep_alive(given) == ollama_fields.FOR_EVER


@pytest.mark.parametrize("given", ["-1", "300", "abc", "5", "1d", "m5", "5m ", "--1s", "1" * 300 + "s", True, [1], {}])
def test_a_keep_alive_that_is_no_duration_is_refused(given: JsonValue) -> None:
    with pytest.raises(Refusal) as found:
        ollama_fields.keep_alive(given)

    assert (found.value.code, found.value.param) == (Code.INVALID_PARAMETER, "keep_alive")


def test_a_keep_alive_without_its_unit_is_told_how_to_write_it() -> None:
    with pytest.raises(Refusal, match=r'unit is missing.*-1 for ever.*"-1m"'):
        ollama_fields.keep_alive("-1")


@pytest.mark.parametrize(
    ("given", "effort"),
    [(None, None), ("", None), (True, "medium"), (False, "none"), ("low", "low"), ("high", "high"), ("max", "max")],
)
def test_think_is_a_switch_or_a_level(given: JsonValue, effort: str | None) -> None:
    assert ollama_fields.think(given) == effort


@pytest.mark.parametrize("given", ["on", "HIGH", "x" * 100, 1, {}])
def test_another_think_is_refused_with_the_levels(given: JsonValue) -> None:
    with pytest.raises(Refusal, match=r'must be "high", "medium", "low", "max", true, or false'):
        ollama_fields.think(given)


def test_format_is_json_a_schema_or_nothing() -> None:
    assert ollama_fields.constraint(None) is None
    assert ollama_fields.constraint("") is None
    assert ollama_fields.constraint("json") == AnyJsonObject()
    assert ollama_fields.constraint({"type": "object"}) == JsonSchema(schema={"type": "object"}, strict=True)


@pytest.mark.parametrize("given", ["xml", True, 3, ["json"]])
def test_another_format_is_refused(given: JsonValue) -> None:
    with pytest.raises(Refusal, match='expected "json" or a valid JSON Schema object'):
        ollama_fields.constraint(given)


@pytest.mark.parametrize(
    "name",
    ["tiny", "tiny:latest", "Tiny:q4_K_M", "ns/tiny:1b", "registry.ollama.ai/library/tiny:latest", "host:8443/ns/tiny"],
)
def test_names_with_tag_namespace_and_host_are_names(name: str) -> None:
    assert ollama_fields.required_name(None, "", name, "another") == name


@pytest.mark.parametrize(
    "name",
    ["tiny:", ":latest", "ti ny", "tiny:a:b", "../x", "a/../b", "/tmp/x", "C:\\x", "a\0b", "%2e%2e/x", "-x", "a/b/c/d"],
)
def test_what_cannot_be_a_name_is_refused_as_such(name: str) -> None:
    with pytest.raises(Refusal, match=r"^invalid model name$"):
        ollama_fields.required_name(name)


def test_a_missing_name_is_asked_for() -> None:
    with pytest.raises(Refusal, match="model is required"):
        ollama_fields.required_name(None, "")


def test_without_options_ollamas_defaults_hold() -> None:
    found = ollama_options.parse(None, {}, silent)

    sampling = found.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.8, 40, 0.9, 0.0)
    assert (sampling.typical_p, sampling.repeat_penalty, sampling.penalty_last_n) == (1.0, 1.0, 64)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.seed) == (0.0, 0.0, None)
    assert (found.max_tokens, found.stop, found.num_ctx) == (ollama_options.UNLIMITED_TOKENS, (), None)


def test_the_request_wins_over_what_is_stored_and_that_over_the_defaults() -> None:
    stored = {"temperature": 0.1, "top_k": 5, "stop": ["<end>"], "seed": 7}

    found = ollama_options.parse({"temperature": 0.5, "seed": None}, stored, silent)

    assert (found.sampling.temperature, found.sampling.top_k, found.sampling.seed) == (0.5, 5, 7)
    assert found.stop == ("<end>",)


@pytest.mark.parametrize(("given", "tokens"), [(8, 8), (-1, 2**31 - 1), (-2, 2**31 - 1), (0, 2**31 - 1), (7.9, 7)])
def test_num_predict_below_one_is_no_limit(given: JsonValue, tokens: int) -> None:
    assert ollama_options.parse({"num_predict": given}, {}, silent).max_tokens == tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop": "\n\n"}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be of type array'),
        ({"num_ctx": "4096"}, 'option "num_ctx" must be of type integer'),
        ({"top_k": True}, 'option "top_k" must be of type integer'),
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
    ],
)
def test_an_option_of_a_wrong_type_is_named_with_its_type(options: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(Refusal) as found:
        ollama_options.parse(options, {}, silent)

    assert found.value.message == words
    assert found.value.param == f"options.{next(iter(options))}"


def test_what_has_no_effect_is_named_and_nothing_else() -> None:
    said: list[tuple[str, str]] = []
    given = {"tfs_z": 1, "mirostat": 0, "made_up": True, "num_gpu": 1, "top_k": 40.0, "stop": [".", ""], "seed": 1}

    found = ollama_options.parse(given, {}, lambda *words: said.append(words))

    assert sorted(name for name, _ in said) == [f"options.{n}" for n in ("made_up", "mirostat", "num_gpu", "tfs_z")]
    assert {what for _, what in said} == {"ignored"}
    assert found.stop == (".",)


def test_values_that_a_sampler_cannot_use_are_clamped_and_named() -> None:
    said: list[tuple[str, str]] = []

    found = ollama_options.parse({"top_p": 1.5, "temperature": -1}, {}, lambda *words: said.append(words))

    assert (found.sampling.top_p, found.sampling.temperature) == (1.0, 0.0)
    assert said == [("options.temperature", "clamped to 0"), ("options.top_p", "clamped to 1")]


def test_a_window_of_minus_one_is_the_whole_context() -> None:
    assert ollama_options.parse({"repeat_last_n": -1}, {}, silent).sampling.penalty_last_n > 100_000
    assert ollama_options.parse({"repeat_last_n": 0}, {}, silent).sampling.penalty_last_n == 0


def test_every_option_that_is_used_is_one_that_ollama_has() -> None:
    for name in OPTIONS:
        ollama_options.checked({name: None})
    with pytest.raises(Refusal):
        ollama_options.checked({"seed": "x"})
