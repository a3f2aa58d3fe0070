"""What a template was found to be is the same from memory, and a file that is not whole is passed over."""

from pathlib import Path

import pytest

from pocketserver.engines.llama.format_memory import FOLDER, MOST_FILES, Examined, examination_key, remembered
from pocketserver.engines.llama.reply_format import derive_reply_format
from pocketserver.engines.llama.template import ChatTemplate
from tests.engines.llama.family_templates import END_TOKENS, FAMILIES, SPECIAL_TOKENS


def examined(family: str) -> Examined:
    template = ChatTemplate(FAMILIES[family].source)
    found = derive_reply_format(template, special_tokens=SPECIAL_TOKENS, end_tokens=END_TOKENS)
    return Examined(traits=template.traits, reply_format=found)


def never() -> Examined:
    raise AssertionError("examined a second time")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_the_same_from_memory(family: str, tmp_path: Path) -> None:
    first = remembered(tmp_path, "key", lambda: examined(family))
    assert remembered(tmp_path, "key", never) == first


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"kind": "Examined", "fields": {}}', b'{"kind": "os"}', b"[" * 100_000]
)
def test_a_damaged_or_foreign_file_is_passed_over_and_replaced(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / FOLDER / "key.json"
    file.parent.mkdir()
    file.write_bytes(content)
    found = remembered(tmp_path, "key", lambda: examined("bare json"))
    assert found == examined("bare json")
    assert remembered(tmp_path, "key", never) == found


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file in the way")
    assert remembered(tmp_path, "key", lambda: examined("bare json")) == examined("bare json")
    assert remembered(None, "key", lambda: examined("bare json")) == examined("bare json")


def test_old_files_make_room(tmp_path: Path) -> None:
    found = examined("bare json")
    for number in range(MOST_FILES + 5):
        remembered(tmp_path, f"key{number}", lambda: found)
    assert len(list((tmp_path / FOLDER).iterdir())) == MOST_FILES


def test_the_key_depends_on_the_template_and_on_the_special_tokens() -> None:
    keys = {
        examination_key("a", ("", ""), ["<x>"], ["</s>"]),
        examination_key("b", ("", ""), ["<x>"], ["</s>"]),
        examination_key("a", ("<s>", ""), ["<x>"], ["</s>"]),
        examination_key("a", ("", ""), ["<y>"], ["</s>"]),
        examination_key("a", ("", ""), ["<x>"], ["<e>"]),
    }
    assert len(keys) == 5
