"""Modelfiles: read as Ollama reads them, every fault with its line, and written so that nothing is lost."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.models.modelfile import Modelfile, ModelfileFault, parse_modelfile, write_modelfile
from pocketserver.models.options import OPTIONS, Kind
from pocketserver.models.stored import ModelSettings, StoredMessage

WHOLE = '''\ufeff# a comment
from tiny:latest

PARAMETER temperature 0.25
parameter top_k 20
PARAMETER stop "<|end|>"
PARAMETER stop User:
PARAMETER use_mmap true
  # an indented comment
SYSTEM """You are
a "quiet" helper.
"""
TEMPLATE "{{ messages }}"
MESSAGE user Hello there
MESSAGE assistant """Hi."""
LICENSE MIT
License "Apache-2.0"
'''


def test_every_instruction_is_read() -> None:
    assert parse_modelfile(WHOLE) == Modelfile(
        base="tiny:latest",
        system='You are\na "quiet" helper.\n',
        template="{{ messages }}",
        parameters={"temperature": 0.25, "top_k": 20, "stop": ["<|end|>", "User:"], "use_mmap": True},
        messages=(
            StoredMessage(role="user", content="Hello there"),
            StoredMessage(role="assistant", content="Hi."),
        ),
        license=("MIT", "Apache-2.0"),
    )


def test_files_from_windows_are_the_same() -> None:
    assert parse_modelfile(WHOLE.replace("\n", "\r\n")) == parse_modelfile(WHOLE)


def test_what_is_not_said_is_none_and_what_is_said_empty_is_empty() -> None:
    assert parse_modelfile("FROM a").system is None
    assert parse_modelfile('FROM a\nSYSTEM ""').system == ""
    assert parse_modelfile('FROM a\nSYSTEM """"""').system == ""


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 0, "no FROM line"),
        ("SYSTEM x", 0, "no FROM line"),
        ("FROM a\nFROM b", 2, "there is a FROM already"),
        ("FROM", 1, "FROM needs the name"),
        ("FROM a\n\n# c\nWHATEVER x", 4, "command must be one of from, license"),
        ("FROM a\nPARAMETER colour 3", 2, "unknown parameter 'colour'"),
        ("FROM a\nPARAMETER", 2, "unknown parameter ''"),
        ("FROM a\nPARAMETER num_ctx many", 2, "'many' is no value for num_ctx, which must be of type integer"),
        ("FROM a\nPARAMETER num_ctx 1_000", 2, "must be of type integer"),
        ("FROM a\nPARAMETER temperature nan", 2, "must be of type float32"),
        ("FROM a\nPARAMETER temperature 1e999", 2, "must be of type float32"),
        ("FROM a\nPARAMETER top_k 99999999999999999999", 2, "must be of type integer"),
        ("FROM a\nPARAMETER use_mmap perhaps", 2, "must be of type boolean"),
        ("FROM a\nMESSAGE robot hi", 2, "message role must be one of system, user, or assistant"),
        ("FROM a\nADAPTER ./lora.gguf", 2, "adapters are not supported"),
        ('FROM a\n\nSYSTEM """open\nto the end', 3, "never closed"),
        ('FROM a\nSYSTEM "open', 2, "never closed"),
    ],
)
def test_a_fault_names_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(ModelfileFault, match=said.replace("(", r"\(")) as caught:
        parse_modelfile(text)

    assert caught.value.line == line
    assert "\n" not in str(caught.value)


def test_what_has_no_effect_is_told() -> None:
    warnings = parse_modelfile("FROM a\nPARAMETER mirostat 1\nRENDERER x\nREQUIRES 0.14.0").warnings

    assert [warning.split(" (")[0] for warning in warnings] == ["The parameter mirostat", "RENDERER", "REQUIRES"]


texts = st.text(st.sampled_from(string.printable.replace("\r", "") + '""""""~~ \n\n\u2028é😀')) | st.text(
    st.characters(exclude_characters="\r", exclude_categories=("Cs",))
)
said_texts = texts.filter(bool)
stops = st.lists(said_texts, min_size=1, max_size=5)
by_kind = {
    Kind.INTEGER: st.integers(-(2**63), 2**63 - 1),
    Kind.FLOAT: st.floats(-3.4e38, 3.4e38),
    Kind.BOOLEAN: st.booleans(),
    Kind.STRINGS: stops,
}
all_settings = st.builds(
    ModelSettings,
    system=texts,
    template=texts,
    parameters=st.fixed_dictionaries({}, optional={name: by_kind[option.kind] for name, option in OPTIONS.items()}),
    messages=st.lists(
        st.builds(StoredMessage, role=st.sampled_from(["system", "user", "assistant"]), content=texts), max_size=3
    ).map(tuple),
    license=st.lists(texts, max_size=2).map(tuple),
)


@given(base=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,20}", fullmatch=True), settings=all_settings)
def test_reading_what_was_written_gives_the_same(base: str, settings: ModelSettings) -> None:
    read = parse_modelfile(write_modelfile(base, settings, comments=["made from", "tiny"]))

    assert read == Modelfile(
        base=base,
        system=settings.system or None,
        template=settings.template or None,
        parameters=dict(settings.parameters),
        messages=settings.messages,
        license=settings.license,
    )


@given(st.text(st.sampled_from('"~ \n\ta#')))
def test_no_value_is_cut_by_its_own_quotes(value: str) -> None:
    assert parse_modelfile(write_modelfile("a", ModelSettings(license=(value, value)))).license == (value, value)


@given(st.text() | st.text(st.sampled_from('FROMSYSTEM "\n')))
def test_any_text_is_a_modelfile_or_has_one_fault(text: str) -> None:
    line = 0
    try:
        assert parse_modelfile(text).base
    except ModelfileFault as fault:
        line = fault.line
    assert 0 <= line <= text.count("\n") + text.count("\r") + 1
