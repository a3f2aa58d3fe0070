"""Codes are read back by a reader that knows nothing of ours."""

import io
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import png
import pytest

from pocketserver.lan import qr
from pocketserver.lan.qr import TerminalStyle

BASE = "http://192.168.1.23:8080/v1"
PAIRING = qr.pairing_url(BASE, "sk-" + "Ab9_-" * 8 + "xyz")
TEXTS = ["http://192.168.1.23:8080/", PAIRING, "http://[fd00::1234]:8080/"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_png_reads_back(text: str, zbarimg: str, tmp_path: Path) -> None:
    assert read_picture(qr.png(text), zbarimg, tmp_path) == text


@pytest.mark.parametrize("text", TEXTS)
def test_terminal_colours_read_back_as_pixels(text: str, zbarimg: str, tmp_path: Path) -> None:
    pixels = pixels_of_ansi(qr.terminal_text(text))

    assert read_picture(as_png(pixels), zbarimg, tmp_path) == text


@pytest.mark.parametrize("text", TEXTS)
def test_ascii_reads_back_on_a_dark_terminal(text: str, zbarimg: str, tmp_path: Path) -> None:
    lines = qr.terminal_text(text, TerminalStyle.ASCII).splitlines()
    pixels = [[line[column] != "#" for column in range(0, len(line), 2)] for line in lines]

    assert read_picture(as_png(pixels), zbarimg, tmp_path) == text


def test_an_svg_has_a_white_ground_and_the_same_modules() -> None:
    drawing = qr.svg(PAIRING).decode()

    assert '<rect fill="white"' in drawing
    assert modules_of_svg(drawing) == [list(row) for row in qr.modules(PAIRING)]


def test_pictures_have_the_quiet_zone_of_the_standard() -> None:
    rows = qr.modules(PAIRING)
    margins = [*rows[:4], *rows[-4:], *([*row[:4], *row[-4:]] for row in rows)]

    assert not any(map(any, margins))
    assert any(rows[4])


def test_a_pairing_code_fits_a_small_terminal() -> None:
    lines = qr.terminal_text(PAIRING).splitlines()

    assert len(lines) <= 23
    assert all(len(visible(line)) <= 80 for line in lines)


def test_each_terminal_line_sets_and_resets_its_own_colours() -> None:
    for line in qr.terminal_text(PAIRING).splitlines():
        assert re.fullmatch(r"\x1b\[38;5;16;48;5;231m[ ▀▄█]+\x1b\[0m", line)


def test_the_key_is_in_the_fragment_only() -> None:
    assert qr.pairing_url(BASE, "sk-abc") == "http://192.168.1.23:8080/#key=sk-abc"
    assert qr.pairing_url("http://10.0.0.1:80/", "a b#&") == "http://10.0.0.1:80/#key=a%20b%23%26"


@pytest.mark.parametrize(
    ("wanted", "is_terminal", "no_color", "style"),
    [
        (None, True, False, TerminalStyle.ANSI),
        (None, True, True, TerminalStyle.NONE),
        (None, False, False, TerminalStyle.NONE),
        (TerminalStyle.ASCII, False, True, TerminalStyle.ASCII),
        (TerminalStyle.ANSI, False, True, TerminalStyle.ANSI),
        (TerminalStyle.NONE, True, False, TerminalStyle.NONE),
    ],
)
def test_nothing_is_drawn_off_a_terminal_unless_asked(
    wanted: TerminalStyle | None, is_terminal: bool, no_color: bool, style: TerminalStyle
) -> None:
    assert qr.style_for(wanted, is_terminal=is_terminal, no_color=no_color) is style


def test_no_style_is_no_text() -> None:
    assert qr.terminal_text(PAIRING, TerminalStyle.NONE) == ""


def read_picture(picture: bytes, zbarimg: str, folder: Path) -> str:
    file = folder / "code.png"
    file.write_bytes(picture)
    done = subprocess.run([zbarimg, "--quiet", "--raw", file], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def pixels_of_ansi(text: str) -> list[list[bool]]:
    """Two rows of modules from each line, as a terminal shows half blocks in black on white."""
    rows: list[list[bool]] = []
    for line in text.splitlines():
        characters = visible(line)
        rows += [[character in "▀█" for character in characters], [character in "▄█" for character in characters]]
    return rows


def visible(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def as_png(dark: Sequence[Sequence[bool]], scale: int = 6, page: int = 6) -> bytes:
    """Black and white pixels on a black page, as on a dark terminal."""
    width = len(dark[0]) + 2 * page
    framed = (
        [[True] * width] * page + [[True] * page + list(row) + [True] * page for row in dark] + [[True] * width] * page
    )
    rows = [[0 if module else 1 for module in row for _ in range(scale)] for row in framed for _ in range(scale)]
    out = io.BytesIO()
    png.Writer(len(rows[0]), len(rows), greyscale=True, bitdepth=1).write(out, rows)
    return out.getvalue()


def modules_of_svg(drawing: str) -> list[list[bool]]:
    size = int(re.search(r'viewBox="0 0 (\d+) \1"', drawing)[1])  # type: ignore[index]
    dark = {(int(row), int(column)) for column, row in re.findall(r"M(\d+),(\d+)H", drawing)}
    return [[(row, column) in dark for column in range(size)] for row in range(size)]
