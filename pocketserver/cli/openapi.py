"""`pocketserver openapi`: the API of a profile as an OpenAPI document."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from pocketserver.errors import StartupError


def openapi(
    profile: Annotated[str, typer.Option(help="Whose API: pocketllm, pooled, roach or hub.")] = "pocketllm",
    output: Annotated[Path | None, typer.Option(help="Write it into this file.")] = None,
) -> None:
    """Print the API of a profile as an OpenAPI 3.1 document in JSON."""
    from pocketserver.openapi import document
    from pocketserver.profile import load_profile

    text = msgspec.json.format(msgspec.json.encode(document(load_profile(profile))), indent=2).decode() + "\n"
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{output} cannot be written: {error.strerror}. Choose another file.") from error
