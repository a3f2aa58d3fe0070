"""The page's files: small, nothing inline, nothing from elsewhere, no markup made of text."""

import re

import pytest

from pocketserver.errors import Code
from pocketserver.page.advice import ADVICE
from pocketserver.page.documents import SENTENCES
from pocketserver.page.files import FOLDER, SAFETY, page_files, template

SCRIPTS = sorted(FOLDER.glob("*.js"))


def test_the_whole_page_is_under_a_hundred_kilobytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 100_000


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in FOLDER.iterdir():
        found = re.findall(r"(?:src|href|url|from|import)\s*[=(]?\s*[\"']((?:https?:)?//[^\"']*)", path.read_text())
        assert found == [], path.name


def test_the_page_holds_no_script_and_no_style() -> None:
    text = template()

    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r"\s(?:style|on\w+)=", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_of_text(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]

    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert word not in text


def test_every_import_and_every_id_is_there() -> None:
    text, files = template(), page_files()
    for path in SCRIPTS:
        for name in re.findall(r"from \"\./([^\"]+)\"", path.read_text()):
            assert name in files
        for found in re.findall(r"\$\(\"([a-z-]+)\"\)|\bon\(\"([a-z-]+)\"", path.read_text()):
            assert f'id="{found[0] or found[1]}"' in text, (path.name, found)


def test_the_chat_has_one_textarea_that_sends() -> None:
    [tag] = re.findall(r"<textarea[^>]*>", template())

    assert 'enterkeyhint="send"' in tag


def test_every_error_has_advice_and_every_state_a_sentence() -> None:
    assert set(ADVICE) == set(Code)
    assert set(SENTENCES) == {"idle", "busy", "loading", "no_model", "stuck"}


def test_the_policy_allows_nothing_by_default() -> None:
    policy = SAFETY["Content-Security-Policy"]

    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
