"""What a person who runs the server can do about each error, as the page's list of errors says it."""

from collections.abc import Mapping

from pocketserver.errors import Code

_BODY = "The client sent something that is not a valid request. Its own message names the place."
_KEY = "Make a key with `pocketserver key new NAME`, or pair the device: `pocketserver pair`."
_BUSY = "One request is answered at a time. The client should try again after Retry-After seconds."
_MEMORY = "Close other programs, take a smaller model, or start the server with a smaller --context."
_UPSTREAM = "Look whether the server behind --upstream is running and reachable."
_RESTARTED = "The model's process is started again by itself. If it happens again, see the server's log."

ADVICE: Mapping[Code, str] = {
    Code.INVALID_JSON: _BODY,
    Code.MALFORMED_REQUEST: _BODY,
    Code.INVALID_PARAMETER: _BODY,
    Code.CONTEXT_LENGTH_EXCEEDED: "Shorten the conversation, or start the server with a larger --context.",
    Code.TOOLS_UNSUPPORTED: "This model cannot call tools. Take one whose chat template has them.",
    Code.TEMPLATE_UNSUPPORTED: "The model's chat template cannot write this conversation. Try --chat-template.",
    Code.MISSING_API_KEY: f"The client sent no key. {_KEY}",
    Code.INVALID_API_KEY: f"The client's key is wrong or revoked. {_KEY}",
    Code.INSUFFICIENT_SCOPE: "The key may not do this. Make one with the scope that the message names.",
    Code.INVALID_PAIRING_CODE: "The code was wrong, used or too old. Show a new one: `pocketserver pair`.",
    Code.HOST_NOT_ALLOWED: "The client used a name that is not ours. Use the base URL, or add it to `allowed_hosts`.",
    Code.ORIGIN_NOT_ALLOWED: "A foreign web page called. If it is yours, add it to `allowed_origins`.",
    Code.PEER_NOT_LOCAL: "A call came from outside this network. Only with --allow-public it would be answered.",
    Code.UNKNOWN_ROUTE: "The client's path is wrong. Its base URL must end in /v1, as shown above.",
    Code.MODEL_NOT_FOUND: "The client named a model that is not here. Use the name shown above, or `default`.",
    Code.RESPONSE_NOT_FOUND: "The stored response is gone. The client should send the whole conversation.",
    Code.PREVIOUS_RESPONSE_NOT_FOUND: "The stored response is gone. The client should send the whole conversation.",
    Code.METHOD_NOT_ALLOWED: "The client used the wrong HTTP method for this path.",
    Code.REQUEST_TOO_LARGE: "The request is too large. Send less text at once.",
    Code.UNSUPPORTED_ENCODING: "The client compressed its request in an unknown way. Send it as it is.",
    Code.TOO_MANY_ATTEMPTS: "Too many wrong keys or codes came from this address. Wait a minute.",
    Code.MODEL_BUSY: _BUSY,
    Code.QUEUE_FULL: "The line is full. Try again later, or raise --max-queue.",
    Code.REQUEST_CANCELLED: "The request was stopped.",
    Code.MODEL_NOT_LOADED: "No model is ready yet. Wait until it is loaded, or start the server with --model.",
    Code.HOST_GONE: "The room's host is gone. Start it again.",
    Code.DISCONNECTED_BY_HOST: "The room's host closed the connection. Join again.",
    Code.INSUFFICIENT_MEMORY: _MEMORY,
    Code.CONTEXT_ALLOCATION_FAILED: _MEMORY,
    Code.UPSTREAM_FAILED: _UPSTREAM,
    Code.UPSTREAM_UNREACHABLE: _UPSTREAM,
    Code.GENERATION_STALLED: _RESTARTED,
    Code.WORKER_LOST: _RESTARTED,
    Code.GENERATION_FAILED: _RESTARTED,
    Code.INTERNAL_ERROR: "A fault of the server. Its log has the details under the request's id.",
}
"""One sentence for every code."""
