"""The model process: `python -m pocketserver.engines.llama.worker PARENT_PID`, started by the server alone.

The main thread decodes. A second thread reads frames, so that a cancel arrives in the middle of a decode; a third one
counts and renders beside it. The end of the input pipe means that the server is gone: the process ends at once.
"""

import os
import queue
import sys
import threading
import traceback
from typing import TYPE_CHECKING, assert_never

from pocketserver.engines.llama.frames import (
    Cancel,
    Close,
    Count,
    Counted,
    Embed,
    Ended,
    Examine,
    Examining,
    Explain,
    Explained,
    FrameError,
    Generate,
    Load,
    LoadFailed,
    Refused,
    ToWorker,
    Tune,
)
from pocketserver.engines.llama.pipes import Pipes, die_with_parent, share_the_processor, take_pipes
from pocketserver.errors import Code, Refusal

if TYPE_CHECKING:
    from pocketserver.chat import GenerationRequest
    from pocketserver.engines.llama.examination import Examination
    from pocketserver.engines.llama.session import Job, Session

_WAITING_COUNTS = 64
_INTERNAL = Refusal(Code.INTERNAL_ERROR, "The model process failed inside. Its log says more; send the request again.")


class Worker:
    """Takes frames apart into work for the two working threads."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._loads: queue.SimpleQueue[Load | Tune | Examine] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        """None stands for the end."""
        self._counts: queue.Queue[Count | Explain] = queue.Queue(_WAITING_COUNTS)
        self._open_jobs: dict[str, Job] = {}

    def run(self) -> None:
        """Load once, then answer for ever; ends by `os._exit` in the reading thread."""
        threading.Thread(target=self._read, name="frames", daemon=True).start()
        session = self._load(self._loads.get())
        if session is None:
            threading.Event().wait()  # the server reads why, and closes the pipe
            return
        threading.Thread(target=self._count, args=(session,), name="count", daemon=True).start()
        while (job := self._next_job(session)) is not None:
            self._answer(session, job)
        session.close()
        os._exit(0)

    def _next_job(self, session: "Session") -> "Job | None":
        try:
            return self._jobs.get(timeout=session.rest_seconds)
        except queue.Empty:
            session.rest()
            return self._jobs.get()

    def _read(self) -> None:
        try:
            while (frame := self._pipes.receive()) is not None:
                self._dispatch(frame)
        except FrameError:
            traceback.print_exc()
        finally:
            os._exit(0)  # also in the middle of native code, which would hold up an ordinary exit

    def _dispatch(self, frame: ToWorker) -> None:
        match frame:
            case Load() | Tune() | Examine():
                self._loads.put(frame)
            case Generate(request=request):
                self._queue_job(request)
            case Embed():
                self._queue_job(frame)
            case Cancel(id=request_id):
                if (found := self._open_jobs.get(request_id)) is not None:
                    found.cancel()
            case Count(ticket=ticket) | Explain(ticket=ticket):
                self._queue_count(frame, ticket)
            case Close():
                for job in [*self._open_jobs.values()]:
                    job.cancel()
                self._jobs.put(None)
            case _:
                assert_never(frame)

    def _load(self, load: Load | Tune | Examine) -> "Session | None":
        """Load and return a session; after measuring or examining there is none."""
        from pocketserver.engines.llama.session import Session
        from pocketserver.engines.llama.tuning_measures import tune

        try:
            if isinstance(load, Load):
                return Session(load, self._pipes.send)
            if isinstance(load, Tune):
                tune(load.load, load.budget_seconds, self._pipes.send)
            else:
                self._examine(load)
        except Refusal as refusal:
            self._pipes.send(LoadFailed(code=refusal.code, message=refusal.message))
        except Exception:  # noqa: BLE001 - the top of this process's work
            traceback.print_exc()
            self._pipes.send(LoadFailed(code=_INTERNAL.code, message="The model could not be loaded. See the log."))
        return None

    def _examine(self, wanted: Examine) -> None:
        from pocketserver.engines.llama.examination import Examination

        self._pipes.send(Examining())
        examination = Examination(wanted)
        threading.Thread(target=self._count, args=(examination,), name="count", daemon=True).start()
        self._pipes.send(examination.found())

    def _answer(self, session: "Session", job: "Job") -> None:
        from pocketserver.engines.llama.decoder import DecodeAbortedError

        try:
            if not job.cancelled:
                session.answer(job)
        except DecodeAbortedError:
            pass
        except Refusal as refusal:
            self._refuse(refusal, request_id=job.request.id)
        except Exception:  # noqa: BLE001 - the top of this thread
            traceback.print_exc()
            self._refuse(_INTERNAL, request_id=job.request.id)
        finally:
            self._open_jobs.pop(job.request.id, None)
            self._pipes.send(Ended(id=job.request.id))

    def _queue_job(self, request: "GenerationRequest | Embed") -> None:
        from pocketserver.engines.llama.session import Job

        job = self._open_jobs[request.id] = Job(request)
        self._jobs.put(job)

    def _queue_count(self, frame: Count | Explain, ticket: int) -> None:
        try:
            self._counts.put_nowait(frame)
        except queue.Full:
            busy = Refusal(Code.MODEL_BUSY, "Too many counts are waiting. Try again shortly.", retry_after=1)
            self._refuse(busy, ticket=ticket)

    def _count(self, counting: "Session | Examination") -> None:
        while True:
            frame = self._counts.get()
            try:
                self._pipes.send(_found(counting, frame))
            except Refusal as refusal:
                self._refuse(refusal, ticket=frame.ticket)
            except Exception:  # noqa: BLE001 - the top of this thread
                traceback.print_exc()
                self._refuse(_INTERNAL, ticket=frame.ticket)

    def _refuse(self, refusal: Refusal, *, request_id: str | None = None, ticket: int | None = None) -> None:
        self._pipes.send(
            Refused(
                id=request_id,
                ticket=ticket,
                code=refusal.code,
                message=refusal.message,
                param=refusal.param,
                details=refusal.details,
            )
        )


def _found(counting: "Session | Examination", frame: Count | Explain) -> Counted | Explained:
    if isinstance(frame, Count):
        return Counted(ticket=frame.ticket, tokens=counting.count(frame.request))
    return Explained(ticket=frame.ticket, explanation=counting.explain(frame.request))


def main() -> None:
    pipes = take_pipes()
    die_with_parent(int(sys.argv[1]))
    share_the_processor()
    from pocketserver.engines.llama import native
    from pocketserver.engines.llama.frames import Hello

    native.quiet()
    pipes.send(
        Hello(
            version=native.version(),
            build=native.build(),
            gpu_offload=native.supports_gpu(),
            metal=native.supports_metal(),
            pid=os.getpid(),
        )
    )
    Worker(pipes).run()


if __name__ == "__main__":
    main()
