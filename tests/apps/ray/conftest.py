"""A Ray cluster of this machine for the tests of one run, and servers in front of it."""

import asyncio
import importlib.util
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.serving import Running, running
from tests.waiting import until

START_SECONDS = 120.0
# `make test-ray` runs them where Ray is; `make test-apps` passes over them.
collect_ignore_glob = [] if importlib.util.find_spec("ray") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[str]:
    """The address of one that is started for all tests, since that takes seconds."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray

    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield str(context.address_info["gcs_address"])
    from ray import serve

    serve.shutdown()
    ray.shutdown()


@dataclass
class Asked:
    """When each piece of an answer came, in seconds from the question, and how it ended."""

    began: float = field(default_factory=time.monotonic)
    status: int = 0
    text: str = ""
    times: list[float] = field(default_factory=list)
    whole: bool = False
    error: str | None = None

    def read(self, line: bytes) -> None:
        if line.startswith(b"data: [DONE]"):
            self.whole = True
        elif line.startswith(b"data: "):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                self.error = chunk["error"]["code"]
            elif text := chunk["choices"][0]["delta"].get("content"):
                self.text += text
                self.times.append(time.monotonic() - self.began)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@dataclass
class Application:
    """Our server before an application of Ray's, and what Ray knows of that."""

    served: Running
    name: str

    @property
    def replicas(self) -> int:
        """Replicas that can answer now."""
        from ray import serve

        states = serve.status().applications[self.name].deployments["engine"].replica_states
        return sum(count for state, count in states.items() if state == "RUNNING")

    def pids(self) -> set[int]:
        """The processes of the replicas."""
        title = f"ray::ServeReplica:{self.name}:engine"
        return {process.pid for process in psutil.process_iter() if _title(process).startswith(title)}

    async def ask(self, text: str, **fields: object) -> Asked:
        """One streamed question; see `Asked` for what becomes of it."""
        asked = Asked()
        messages = [{"role": "user", "content": text}]
        async with self.served.session() as session:
            body = {"model": "default", "messages": messages, "stream": True, **fields}
            async with session.post("/v1/chat/completions", json=body) as answer:
                asked.status = answer.status
                async for line in answer.content:
                    asked.read(line)
        return asked


@asynccontextmanager
async def application(home: Path, name: str, **settings: object) -> AsyncIterator[Application]:
    """`serve --engine ray` in the profile that has every route, ready; its application ends with it."""
    from pocketserver.assembly import make_engine
    from pocketserver.settings import load

    flags = {"profile": "hub", "mdns": False, "ray_app": name, "ray_cpus": 0.1, **settings}
    wanted = {"home": str(home), "engine": "ray", **flags}
    engine = make_engine(load(flags=wanted, environment={}).settings, None)
    async with running(home, engine, **flags) as served:
        await until(lambda: engine.status.model is not None or engine.status.problem is not None, START_SECONDS)
        assert engine.status.problem is None, engine.status.problem
        yield Application(served, name)
        await asyncio.sleep(0)
