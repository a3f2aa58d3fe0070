"""QR codes of the server's address: for a terminal, as PNG and as SVG; and what is written into them."""

import io
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from qrcode.image.base import BaseImage
    from qrcode.main import QRCode

QUIET_ZONE_MODULES = 4  # ISO/IEC 18004
TERMINAL_QUIET_ZONE_MODULES = 2  # enough for readers when the margin is explicitly white, and it fits 80x24
PNG_PIXELS_A_MODULE = 10
_DARK_ON_LIGHT = "\x1b[38;5;16;48;5;231m"
_RESET = "\x1b[0m"
_HALF_BLOCKS = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}

Modules = Sequence[Sequence[bool]]


class TerminalStyle(StrEnum):
    """How a QR code is drawn as text. `ASCII` draws the light modules, for a dark terminal without colours."""

    ANSI = "ansi"
    ASCII = "ascii"
    NONE = "none"


def style_for(wanted: TerminalStyle | None, *, is_terminal: bool, no_color: bool) -> TerminalStyle:
    """What was asked for; else colours on a terminal, and nothing where there is none or colours are unwanted."""
    if wanted is not None:
        return wanted
    return TerminalStyle.ANSI if is_terminal and not no_color else TerminalStyle.NONE


def pairing_url(base: str, key: str) -> str:
    """The address with the key in the fragment, which browsers never send: `http://192.168.1.5:8080/#key=sk-…`."""
    return f"{base.rstrip('/').removesuffix('/v1')}/#key={quote(key, safe='')}"


def terminal_text(text: str, style: TerminalStyle = TerminalStyle.ANSI) -> str:
    """The code as lines of text, without a final line end; empty for `NONE`."""
    match style:
        case TerminalStyle.ANSI:
            lines = [f"{_DARK_ON_LIGHT}{line}{_RESET}" for line in _half_block_lines(_terminal_modules(text))]
        case TerminalStyle.ASCII:
            lines = ["".join("  " if dark else "##" for dark in row) for row in _terminal_modules(text)]
        case TerminalStyle.NONE:
            lines = []
    return "\n".join(lines)


def png(text: str) -> bytes:
    """A PNG picture, black on white, with the quiet zone of the standard."""
    from qrcode.image.pure import PyPNGImage

    code = _code(text, QUIET_ZONE_MODULES)
    out = io.BytesIO()
    code.make_image(image_factory=PyPNGImage).save(out)
    return out.getvalue()


def svg(text: str) -> bytes:
    """An SVG picture with a white background of its own, so that it reads on dark pages too."""
    from qrcode.image.svg import SvgPathFillImage

    code = _code(text, QUIET_ZONE_MODULES)
    out = io.BytesIO()
    code.make_image(image_factory=SvgPathFillImage).save(out)
    return out.getvalue()


def modules(text: str, quiet_zone: int = QUIET_ZONE_MODULES) -> Modules:
    """The code as rows of modules, true for dark, with its quiet zone."""
    matrix: list[list[bool]] = _code(text, quiet_zone).get_matrix()
    return matrix


def _code(text: str, quiet_zone: int) -> "QRCode[BaseImage]":
    """A code with error correction of level M, which is right for screens."""
    import qrcode

    code = qrcode.QRCode(
        error_correction=qrcode.ERROR_CORRECT_M,
        box_size=PNG_PIXELS_A_MODULE,
        border=quiet_zone,
    )
    code.add_data(text)
    code.make(fit=True)
    return code


def _terminal_modules(text: str) -> Modules:
    return modules(text, TERMINAL_QUIET_ZONE_MODULES)


def _half_block_lines(rows: Modules) -> Iterator[str]:
    """Two rows of modules a line; a code has an odd number of rows, so the last line gets a light one."""
    padded = [*rows, [False] * len(rows[0])] if len(rows) % 2 else rows
    for upper, lower in zip(padded[::2], padded[1::2], strict=True):
        yield "".join(_HALF_BLOCKS[pair] for pair in zip(upper, lower, strict=True))
