"""Text comes out whole, without stop strings, however its bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.engines.text import TextAssembler


def assembled(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], TextAssembler]:
    assembler = TextAssembler(stop)
    shown = [assembler.feed(piece) for piece in pieces]
    return [*shown, assembler.finish()], assembler


def test_a_character_in_several_tokens_is_shown_whole() -> None:
    pieces = [b"\xf0\x9f", b"\x91\xa9\xe2", b"\x80\x8d\xf0\x9f\x92\xbb", b"\xe6\x97", b"\xa5\xe6\x9c\xac"]
    shown, _ = assembled(pieces)
    assert shown == ["", "\U0001f469", "\u200d\U0001f4bb", "", "\u65e5\u672c", ""]


def test_a_stop_string_over_several_tokens_never_shows() -> None:
    shown, assembler = assembled([b"ABC", b"DE", b"F", b"GH", b"IJK"], ("DEFGHIJ",))
    assert shown == ["ABC", "", "", "", "", ""]
    assert assembler.stop_sequence == "DEFGHIJ"


def test_text_that_only_began_like_a_stop_string_comes_out() -> None:
    shown, assembler = assembled([b"AB", b"C", b"x"], ("BCD",))
    assert shown == ["A", "", "BCx", ""]
    assert not assembler.stopped


def test_held_text_comes_out_at_the_end() -> None:
    shown, assembler = assembled([b"say <thin"], ("<think>",))
    assert shown == ["say ", "<thin"]
    assert not assembler.holding


def test_a_stop_string_may_end_inside_a_token_and_hold_wide_characters() -> None:
    first, second = "a\u65e5".encode(), "\u672cb".encode()
    shown, assembler = assembled([first, second[:2], second[2:]], ("\u65e5\u672c",))
    assert "".join(shown) == "a"
    assert assembler.stop_sequence == "\u65e5\u672c"


@pytest.mark.parametrize(("stop", "text", "hit"), [(("abc", "b"), "", "b"), (("c", "abc"), "", "abc")])
def test_the_stop_string_that_is_complete_first_wins(stop: tuple[str, ...], text: str, hit: str) -> None:
    for pieces in ([b"abcd"], [b"a", b"b", b"c", b"d"]):
        shown, assembler = assembled(pieces, stop)
        assert "".join(shown) == ("a" if hit == "b" else text)
        assert assembler.stop_sequence == hit


def test_bytes_that_are_no_characters_are_replaced_and_half_a_character_at_the_end_is_left_out() -> None:
    shown, _ = assembled([b"a\xff", b"b\xe6\x97"])
    assert "".join(shown) == "a\ufffdb"


@given(st.text(alphabet="ab\u65e5\U0001f469", max_size=30), st.lists(st.integers(1, 4), max_size=40))
def test_how_bytes_are_cut_makes_no_difference(text: str, sizes: list[int]) -> None:
    data, stop = text.encode(), ("ab\u65e5", "ba", "\U0001f469\U0001f469")
    whole, _ = assembled([data], stop)
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    cut, _ = assembled([*pieces, data], stop)
    assert "".join(cut) == "".join(whole)
