"""The list of models in Anthropic's shape, page by page."""

from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from pocketserver.chat import ModelInfo
from pocketserver.errors import Code, Refusal
from pocketserver.wire.anthropic_models import asks_models_of_anthropic, model_fields, model_list

FIVE = [ModelInfo(id=name, created=1_700_000_000, context_size=4096) for name in "abcde"]


def page(**query: str) -> tuple[str, bool]:
    found = model_list(FIVE, str, query)
    ids = [entry["id"] for entry in found["data"]]
    assert (found["first_id"], found["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    return "".join(ids), found["has_more"]


def test_an_entry_has_what_typed_clients_require() -> None:
    entry = model_fields(FIVE[0], "pooled/a")
    assert entry == {
        "type": "model",
        "id": "pooled/a",
        "display_name": "pooled/a",
        "created_at": "2023-11-14T22:13:20Z",
        "lifecycle": "active",
        "max_input_tokens": 4096,
        "max_tokens": 4096,
        "max_model_len": 4096,
    }
    assert datetime.fromisoformat(entry["created_at"]) == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "5"}, "abcde", False),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "2", "before_id": "c"}, "ab", False),
        ({"before_id": "a"}, "", False),
        ({"after_id": "a", "before_id": "d"}, "bc", False),
    ],
)
def test_pages_follow_one_another_in_both_directions(query: dict[str, str], ids: str, has_more: bool) -> None:
    assert page(**query) == (ids, has_more)


def test_an_empty_list_has_no_first_and_no_last() -> None:
    assert model_list([], str, {}) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"limit": "²"}, {"after_id": "z"}, {"before_id": "z"}]
)
def test_a_page_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(Refusal) as caught:
        page(**query)
    assert caught.value.code is Code.INVALID_PARAMETER
    assert caught.value.param in query


@pytest.mark.parametrize(
    ("path", "headers", "is_anthropic"),
    [
        ("/v1/models", {"anthropic-version": "2023-06-01"}, True),
        ("/v1/models/a%2Fb", {"anthropic-version": "1999-01-01", "Authorization": "Bearer x"}, True),
        ("/v1/models", {"x-api-key": "x"}, True),
        ("/v1/models", {"x-api-key": "x", "Authorization": "Bearer x"}, False),
        ("/v1/models", {"Authorization": "Bearer x"}, False),
        ("/v1/models", {}, False),
        ("/v1/modelsx", {"x-api-key": "x"}, False),
        ("/v1/chat/completions", {"x-api-key": "x"}, False),
    ],
)
def test_the_headers_tell_whose_client_asks_for_models(path: str, headers: dict[str, Any], is_anthropic: bool) -> None:
    assert asks_models_of_anthropic(make_mocked_request("GET", path, headers)) is is_anthropic
