"""Why a model could not be fetched."""

from pocketserver.errors import Code, Refusal, StartupError


class PullFault(StartupError):  # noqa: N818 - a command ends with it, a request is answered with it
    """One line with the remedy, for a command; `code` for a request. It names no folder and no secret."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def as_refusal(error: Refusal | StartupError) -> Refusal:
    """What ends a command, as what a request is answered with."""
    if isinstance(error, Refusal):
        return error
    return Refusal(error.code if isinstance(error, PullFault) else Code.INTERNAL_ERROR, str(error))
