"""The page's files, read once from the package, with the headers that keep them harmless."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pocketserver.page.documents import SENTENCES, PageState

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
CONTENT_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SAFETY: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
"""On every response of the page: nothing inline, nothing from elsewhere, no text made into markup, in no frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file in memory, with the tag that browsers ask again by."""

    body: bytes
    content_type: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """Every file but the page itself, by name. An explicit table: no path of a request is ever joined to a folder."""
    return {path.name: _file(path) for path in sorted(FOLDER.iterdir()) if path.suffix in CONTENT_TYPES}


def template() -> str:
    return (FOLDER / INDEX).read_text(encoding="utf-8")


def rendered(text: str, state: PageState) -> str:
    """The page with the state written into it, so that it can be read without scripts."""
    values = {
        "state": state.state,
        "sentence": SENTENCES.get(state.state, state.state),
        "problem": state.problem or "",
        "model": state.model or "none",
        "context": f"{state.context_size:,} tokens" if state.context_size else "unknown",
        "base_url": state.base_url,
        "version": state.version,
        "simulated": "" if state.simulated else "hidden",
        "key": "needed" if state.asks_for_key else "not needed",
    }
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", escape(value))
    return text


def _file(path: Path) -> PageFile:
    body = path.read_bytes()
    return PageFile(
        body=body,
        content_type=CONTENT_TYPES[path.suffix],
        etag=f'"{hashlib.sha256(body).hexdigest()[:24]}"',
    )
