"""What the tests of completions and embeddings share: a server of every API, and the JavaScript SDK as its client."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from pocketserver.engines.engine import Engine
from tests.clients.test_javascript import FOLDER
from tests.serving import Running, running
from tests.tools import install_packages, run


def serving_all(home: Path, engine: Engine | None = None, **settings: object) -> AbstractAsyncContextManager[Running]:
    """A server with every route."""
    return running(home, engine, **{"profile": "hub", "mdns": False, **settings})


async def asked_in_javascript(server: Running, model: str = "default") -> dict[str, Any]:
    """What the `openai` npm package gets from this server."""

    def ask() -> dict[str, Any]:
        install_packages(FOLDER)
        found: dict[str, Any] = json.loads(run(["node", "plain.js", f"{server.origin}/v1", server.key, model], FOLDER))
        return found

    return await asyncio.to_thread(ask)
