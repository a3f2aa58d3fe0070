"""How Ray chooses a replica: the one that had the conversation before, another one when that is busy."""

import time

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from pocketserver.engines.ray_serve.messages import rank

PATIENCE_SECONDS = 0.05
"""How long a request waits for its own replica alone: news that an answer has ended takes a moment to come round."""


class ConversationRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types here
    """Named by its path in the deployment; Ray makes one in every process that asks replicas."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Candidates in tiers: the next is asked when all of one are busy."""
        conversation = _conversation(pending_request)
        if pending_request is None or conversation is None:
            return [list(candidate_replicas)]
        known = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked = [[known[name]] for name in rank(conversation, list(known))]
        return ranked[:1] if time.time() - pending_request.created_at < PATIENCE_SECONDS else ranked


def _conversation(pending: PendingRequest | None) -> str | None:
    found = None if pending is None else pending.kwargs.get("conversation")
    return found if isinstance(found, str) else None
