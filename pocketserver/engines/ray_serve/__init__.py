"""Many copies of one engine in a Ray cluster, as one engine. Nothing here imports Ray: see `pocketserver.cluster`."""
