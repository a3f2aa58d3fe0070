"""`pocketserver qr`, from the address to what is printed or written."""

import os
from pathlib import Path

import pytest

from pocketserver.cli import qr
from pocketserver.errors import StartupError
from pocketserver.lan.qr import TerminalStyle, png, svg, terminal_text

ROOT = "http://192.168.1.23:8080/"


def test_off_a_terminal_only_the_address_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    qr.show(ROOT, png=None, svg=None, style=None)
    assert capsys.readouterr().out == f"{ROOT}\n"


def test_a_style_that_was_asked_for_is_drawn_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    qr.show(ROOT, png=None, svg=None, style=TerminalStyle.ANSI)
    assert capsys.readouterr().out == f"{terminal_text(ROOT)}\n{ROOT}\n"


def test_pictures_are_written_whole_for_the_owner_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qr.show(ROOT, png=tmp_path / "a.png", svg=tmp_path / "a.svg", style=None)

    assert (tmp_path / "a.png").read_bytes() == png(ROOT)
    assert (tmp_path / "a.svg").read_bytes() == svg(ROOT)
    assert len(list(tmp_path.iterdir())) == 2
    assert capsys.readouterr().out == ""
    if os.name == "posix":
        assert (tmp_path / "a.png").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="Cannot write"):
        qr.show(ROOT, png=tmp_path / "missing" / "a.png", svg=None, style=None)
