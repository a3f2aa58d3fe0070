"""Connect to a Ray cluster, deploy the engine there, and ask its replicas: the only module that calls Ray."""

import logging
import os
from collections.abc import AsyncIterator
from typing import Any

from pocketserver.cluster.options import ClusterOptions
from pocketserver.engines.ray_serve.engine import ReplicaLost
from pocketserver.errors import StartupError

DEPLOYMENT = "engine"
ROUTER = "pocketserver.cluster.router.ConversationRouter"
_MANY = 1_000_000
_HEALTH_EVERY_SECONDS = 2.0


class RayCluster:
    """Implements `engines.ray_serve.engine.Cluster`."""

    def __init__(self, options: ClusterOptions, handle: Any, *, remove_at_end: bool, disconnect_at_end: bool) -> None:
        self._options = options
        self._handle = handle
        self._streaming = handle.options(stream=True)
        self._remove_at_end = remove_at_end
        self._disconnect_at_end = disconnect_at_end

    def generate(self, packed: bytes, conversation: str) -> "RayPieces":
        return RayPieces(self._streaming.generate.remote(packed, conversation=conversation))

    async def call(self, method: str, packed: bytes) -> bytes:
        from ray.exceptions import RayActorError

        try:
            answer: bytes = await getattr(self._handle, method).remote(packed)
        except RayActorError as error:
            raise ReplicaLost from error
        return answer

    def running(self) -> int:
        from ray import serve

        app = serve.status().applications.get(self._options.app)
        states = {} if app is None else app.deployments[DEPLOYMENT].replica_states
        return sum(count for state, count in states.items() if str(getattr(state, "value", state)) == "RUNNING")

    def close(self) -> None:
        import ray
        from ray import serve

        if self._remove_at_end:
            serve.delete(self._options.app)
        if self._disconnect_at_end:
            ray.shutdown()  # which ends a cluster that was started for this server alone


class RayPieces:
    """One answer; Ray's exceptions become ours here."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._done = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        from ray.exceptions import RayActorError

        try:
            async for packed in self._response:
                yield packed
        except RayActorError as error:
            self._done = True
            raise ReplicaLost from error
        self._done = True

    def cancel(self) -> None:
        if not self._done:
            self._done = True
            self._response.cancel()


def connect(options: ClusterOptions, *, keep: bool = False) -> RayCluster:
    """The application of this name if the cluster has it, else deploy it; with `keep` it outlives this process.

    Waits until the first replicas have loaded their model. Raises StartupError.
    """
    joined = _join(options.address)
    from ray import serve

    if options.app in serve.status().applications:
        return RayCluster(options, serve.get_app_handle(options.app), remove_at_end=False, disconnect_at_end=joined)
    serve.start(proxy_location="Disabled")  # our server is the door; Ray's own would be one without a key
    handle = serve.run(_application(options), name=options.app, route_prefix=None)
    return RayCluster(options, handle, remove_at_end=not keep, disconnect_at_end=joined)


def remove(app: str, address: str | None) -> bool:
    """End an application. False when there was none of this name. Raises StartupError."""
    _join(address)
    from ray import serve

    if app not in serve.status().applications:
        return False
    serve.delete(app)
    return True


def _join(address: str | None) -> bool:
    """Be part of a cluster. False when this process was already."""
    # Ray reports its use to its makers unless told not to, before anything of it starts
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray import serve  # noqa: F401 - it is another package's extra
    except ImportError as error:
        raise StartupError("The engine ray needs the extra: pip install 'pocketserver[ray]'.") from error
    logging.getLogger("ray").setLevel(logging.WARNING)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False)
    except ConnectionError as error:
        raise StartupError(f"No Ray cluster answers at {address}. Start one with `ray start --head`.") from error
    return True


def _application(options: ClusterOptions) -> Any:
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from pocketserver.cluster.replica import Replica

    scaled = options.most_replicas > options.replicas
    deployment = serve.deployment(
        name=DEPLOYMENT,
        max_ongoing_requests=1,
        max_queued_requests=_MANY,  # our door bounds them
        num_replicas=None if scaled else options.replicas,
        autoscaling_config=_scaling(options) if scaled else None,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        health_check_period_s=_HEALTH_EVERY_SECONDS,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
    )(Replica)
    return deployment.bind(options.settings, max(options.replicas, options.most_replicas))


def _scaling(options: ClusterOptions) -> dict[str, float]:
    return {
        "min_replicas": options.replicas,
        "max_replicas": options.most_replicas,
        "initial_replicas": options.replicas,
        "target_ongoing_requests": 1,
    }
