"""What is heard is merged, bounded and shown without harm."""

import ipaddress
import json

import pytest

from pocketserver.cli import discover
from pocketserver.lan.browse import MAX_TXT_PAIRS, Heard, check_health, decode_text, merge
from tests.lan.bed import unescape

POCKET, OPENAI, HTTP = "_pocketllm._tcp.local.", "_openai._tcp.local.", "_http._tcp.local."


def heard(kind: str, *, name: str = "one", port: int = 8080, api: str = "openai", address: str = "10.0.0.1") -> Heard:
    return Heard(
        name=name, types=(kind,), host="h.local", port=port, addresses=(address,), txt={"api": api, "in": kind}
    )


def test_the_types_of_one_server_are_one_entry_with_our_own_types_text() -> None:
    [server] = merge([heard(HTTP), heard(OPENAI), heard(POCKET)])

    assert server.types == (HTTP, OPENAI, POCKET)
    assert server.txt["in"] == POCKET


def test_servers_of_one_name_on_two_ports_are_two_entries() -> None:
    assert [server.port for server in merge([heard(POCKET, port=8081), heard(POCKET)])] == [8080, 8081]


def test_printers_and_other_web_servers_are_not_listed() -> None:
    assert merge([heard(HTTP, name="printer", api="")]) == []
    assert [server.name for server in merge([heard(HTTP, name="ours")])] == ["ours"]


def test_ipv4_addresses_come_first() -> None:
    [server] = merge([heard(POCKET, address="fd00::1"), heard(OPENAI, address="10.0.0.1")])

    assert server.addresses == ("10.0.0.1", "fd00::1")
    assert server.base_url == "http://10.0.0.1:8080/v1"


@pytest.mark.parametrize(
    ("properties", "decoded"),
    [
        ({b"Model": b"a", b"model": b"b"}, {"model": "a"}),
        ({b"flag": None, b"empty": b""}, {"flag": "", "empty": ""}),
        ({b"\xff": b"\xfe"}, {"\ufffd": "\ufffd"}),
        ({b"": b"x"}, {}),
    ],
)
def test_texts_are_decoded_by_the_rules_of_the_standard(
    properties: dict[bytes, bytes | None], decoded: dict[str, str]
) -> None:
    assert decode_text(properties) == decoded


def test_texts_are_bounded() -> None:
    assert len(decode_text({b"k%d" % number: b"v" * 999 for number in range(500)})) == MAX_TXT_PAIRS


async def test_a_public_address_is_never_asked() -> None:
    [server] = await check_health([heard(POCKET, address="8.8.8.8")], [ipaddress.ip_network("10.0.0.0/8")])

    assert server.answers is False


def test_lines_and_documents_carry_no_control_characters() -> None:
    server = heard(POCKET, name="a\x1b[31m\r\n\x9bb")

    assert discover.as_line(server).isprintable()
    assert json.dumps(discover.as_document(server)).isprintable()
    assert discover.as_document(server)["name"] == server.name


def test_followers_are_told_what_came_changed_and_went() -> None:
    gone, stays, comes = heard(POCKET, name="gone"), heard(POCKET, name="stays"), heard(POCKET, name="comes")
    later = heard(POCKET, name="stays", address="10.0.0.2")
    before = {("gone", "", 0): gone, ("stays", "", 0): stays}
    now = {("stays", "", 0): later, ("comes", "", 0): comes}

    assert discover.differences(before, now) == [("removed", gone), ("added", comes), ("changed", later)]


def test_avahis_escapes_are_undone() -> None:
    assert unescape("a\\032b\\.c\\195\\169") == "a b.c\u00e9"
