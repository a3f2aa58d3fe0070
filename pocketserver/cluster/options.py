"""From settings to what is deployed in a Ray cluster."""

import math
from dataclasses import dataclass

import msgspec

from pocketserver.settings import SECRETS, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What to deploy and where. `address` None is RAY_ADDRESS if that is set, and a cluster of this machine otherwise.

    Between `replicas` and `most_replicas` Ray decides by the length of its queue. `cpus` and `gpus` are what Ray sets
    aside for each. `settings` are the replica's own: its engine, its model.
    """

    settings: Settings
    app: str = "pocketserver"
    address: str | None = None
    replicas: int = 1
    most_replicas: int = 1
    cpus: float = 1.0
    gpus: float = 0.0


def cluster_options(settings: Settings) -> ClusterOptions:
    """What `--engine ray` and `pocketserver cluster deploy` deploy. No secret leaves this machine with it."""
    threads = settings.threads or max(1, math.floor(settings.ray_cpus))
    own = {"engine": settings.ray_engine, "threads": threads, "switching": False, "record": None, "replay": None}
    return ClusterOptions(
        settings=msgspec.structs.replace(settings, **dict.fromkeys(SECRETS), **own),
        app=settings.ray_app,
        address=settings.ray_address,
        replicas=settings.ray_replicas,
        most_replicas=max(settings.ray_replicas, settings.ray_most_replicas or 1),
        cpus=settings.ray_cpus,
        gpus=settings.ray_gpus,
    )
