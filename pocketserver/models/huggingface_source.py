"""Where a Hugging Face repository's file lies, and with which token it is asked for: huggingface_hub's own rules."""

from collections.abc import Mapping

from pocketserver.errors import Code
from pocketserver.models.catalog import HuggingFaceSource
from pocketserver.models.pull_fault import PullFault


def locate(source: HuggingFaceSource) -> tuple[str, Mapping[str, str]]:
    """The file's address and the headers to ask with. Blocks for the import.

    The token is the one that `hf auth login` keeps or that huggingface_hub finds in its own settings; none is needed
    for public files. Raises PullFault when the extra is not installed.
    """
    try:
        from huggingface_hub import get_token, hf_hub_url
    except ImportError as error:
        raise PullFault(
            Code.UPSTREAM_FAILED,
            f"{source.repo} is on Hugging Face, and the package for that is not installed. "
            "Install it with `pip install 'pocketserver[hf]'`.",
        ) from error
    url = hf_hub_url(source.repo, source.file, revision=source.revision, endpoint=source.endpoint or None)
    token = get_token()
    return url, {} if token is None else {"Authorization": f"Bearer {token}"}
