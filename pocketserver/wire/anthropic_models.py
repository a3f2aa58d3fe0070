"""`GET /v1/models` and `/v1/models/{id}` in Anthropic's shape, and who is answered in it.

Source: the Anthropic API reference, "List Models" and "Get a Model".
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from pocketserver.chat import ModelInfo
from pocketserver.wire.json_body import invalid

DEFAULT_LIMIT = 20
MOST_IN_A_PAGE = 1000


def asks_models_of_anthropic(request: web.Request) -> bool:
    """Whether a request for the models, a path that two families share, comes from a client of this one."""
    headers = request.headers
    speaks = "anthropic-version" in headers or ("x-api-key" in headers and "Authorization" not in headers)
    return speaks and (request.path == "/v1/models" or request.path.startswith("/v1/models/"))


def model_fields(model: ModelInfo, shown_as: str) -> dict[str, Any]:
    """One entry. `shown_as` is the id as clients see it."""
    return {
        "type": "model",
        "id": shown_as,
        "display_name": shown_as,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context_size,
        "max_tokens": model.context_size,
        "max_model_len": model.context_size,
    }


def model_list(models: Sequence[ModelInfo], shown: Callable[[str], str], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list, as `limit`, `after_id` and `before_id` ask. Raises INVALID_PARAMETER for what is none."""
    limit = _limit(query.get("limit"))
    entries = [model_fields(model, shown(model.id)) for model in models]
    ids = [entry["id"] for entry in entries]
    first, end = 0, len(entries)
    if "after_id" in query:
        first = _place(ids, query["after_id"], "after_id") + 1
    if "before_id" in query:
        end = _place(ids, query["before_id"], "before_id")
        page = entries[max(first, end - limit) : end]
        has_more = end - limit > first
    else:
        page = entries[first : first + limit]
        has_more = first + limit < end
    return {
        "data": page,
        "has_more": has_more,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not (given.isascii() and given.isdigit() and len(given) < 6 and 1 <= int(given) <= MOST_IN_A_PAGE):
        raise invalid("limit", f"`limit` must be a number from 1 to {MOST_IN_A_PAGE}.")
    return int(given)


def _place(ids: Sequence[str], wanted: str, param: str) -> int:
    if wanted not in ids:
        raise invalid(param, f"`{param}` names no model of the list.")
    return ids.index(wanted)
