"""One pull for everybody who waits for the same model: the work lives as long as somebody listens."""

import asyncio
from collections.abc import Mapping

from pocketserver.errors import Code, Refusal, StartupError
from pocketserver.models.catalog import CatalogEntry
from pocketserver.models.progress import Progress, Stage
from pocketserver.models.pull import PullMeans, pull
from pocketserver.models.pull_fault import as_refusal
from pocketserver.models.step_stream import StepStream
from pocketserver.models.store import ModelStore
from pocketserver.models.stored import SUCCESS, Step

_BEGINNING = Step(status="pulling manifest")
_STATUS: Mapping[Stage, str] = {
    Stage.WAITING: "waiting for another pull of this model",
    Stage.DOWNLOADING: "pulling {digest}",
    Stage.UNPACKING: "unpacking {digest}",
    Stage.VERIFYING: "verifying sha256 digest",
    Stage.STORING: "writing manifest",
}
_WITH_BYTES = frozenset({Stage.DOWNLOADING, Stage.UNPACKING})


class SharedPull:
    """A pull with its listeners. Made by the first one; the last one to leave ends it."""

    def __init__(self, entry: CatalogEntry, store: ModelStore, means: PullMeans) -> None:
        self._entry = entry
        self._listeners: set[StepStream] = set()
        self._latest = _BEGINNING
        self._working = asyncio.create_task(self._work(store, means), name=f"pull {entry.name}")
        self._leaving = False

    @property
    def ended(self) -> bool:
        """Whether the work is done, has failed, or is being given up: nobody can join any more."""
        return self._leaving or self._working.done()

    def join(self) -> StepStream:
        """A stream of what happens from here on, beginning with how far it is."""
        steps = StepStream()
        steps.put(_BEGINNING)
        steps.put(self._latest)
        self._listeners.add(steps)
        return steps

    async def leave(self, steps: StepStream) -> None:
        """Listen no more; with the last listener the work ends before this returns."""
        self._listeners.discard(steps)
        if not self._listeners:
            self._leaving = True
            self._working.cancel()
            await asyncio.wait({self._working})

    async def _work(self, store: ModelStore, means: PullMeans) -> None:
        try:
            await pull(self._entry, store, self._tell, means)
        except (Refusal, StartupError) as error:
            self._fail(as_refusal(error))
        except Exception:
            self._fail(Refusal(Code.INTERNAL_ERROR, "The pull failed by a fault of ours. Look at the server's log."))
            raise
        else:
            self._leaving = True
            for steps in self._listeners:
                steps.put(SUCCESS)
                steps.close()

    def _fail(self, refusal: Refusal) -> None:
        self._leaving = True
        for steps in self._listeners:
            steps.fail(Refusal(refusal.code, refusal.message))  # one instance for each raising

    def _tell(self, progress: Progress) -> None:
        if progress.stage is Stage.DONE:
            return  # what follows it is success
        status = _STATUS[progress.stage].format(digest=self._entry.sha256[:12])
        self._latest = Step(status=status)
        if progress.stage in _WITH_BYTES:
            digest = f"sha256:{self._entry.sha256}"
            self._latest = Step(status=status, digest=digest, total=progress.total_bytes, completed=progress.done_bytes)
        for steps in self._listeners:
            steps.put(self._latest)
