"""Host, Origin and peer rules of the four profiles, as tables."""

import ipaddress
from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.errors import Code, Refusal
from pocketserver.gate.hosts import Address, HostKind, HostRule, Network, OriginKind, OriginRule, PeerKind, PeerRule

OWN = (ipaddress.ip_address("192.168.1.20"), ipaddress.ip_address("2001:db8::20"), ipaddress.ip_address("fe80::20"))


def host_rule(kind: HostKind, port: int = 8080, configured: Collection[str] = ()) -> HostRule:
    return HostRule(
        kind=kind,
        port=lambda: port,
        own_addresses=lambda: OWN,
        own_names=lambda: ("pocket-1a2b.local",),
        configured=configured,
    )


def code(check: Callable[[], None]) -> Code | None:
    try:
        check()
    except Refusal as refusal:
        return refusal.code
    return None


POOLED, ROACH, LAN = host_rule("exact_loopback"), host_rule("loopback_names", 36434), host_rule("own")


@pytest.mark.parametrize(
    ("rule", "host"),
    [
        *((POOLED, host) for host in ("127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080")),
        *((ROACH, host) for host in ("127.0.0.1:36434", "localhost:36434", "[::1]:36434", "localhost", "LocalHost.:1")),
        *((ROACH, host) for host in ("127.0.0.1", "127.1.2.3:80", "app.localhost:36434", "[::1]")),
        *((LAN, host) for host in ("192.168.1.20:8080", "192.168.1.20", "192.168.1.20:80")),
        *((LAN, host) for host in ("pocket-1a2b.local:8080", "POCKET-1A2B.LOCAL", "pocket-1a2b.local.:8080")),
        *((LAN, host) for host in ("localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[2001:DB8::20]:8080")),
        *((LAN, host) for host in ("[2001:db8:0:0::20]", "[fe80::20%eth0]:8080", "[fe80::20]:8080")),
    ],
)
def test_own_hosts_are_served(rule: HostRule, host: str) -> None:
    rule.check([host])
    rule.check([host])  # remembered ones as well


@pytest.mark.parametrize(
    ("rule", "host"),
    [
        *(
            (POOLED, host)
            for host in (
                "evil.example",
                "evil.example:8080",
                "localhost:9",
                "127.0.0.1",
                "localhost",
                "[::1]:8080",
                "localhost.evil.example:8080",
                "127.0.0.1:8080.evil.example",
                "127.0.0.1:8080@evil.example",
                "127.0.0.1:08080x",
            )
        ),
        *((ROACH, host) for host in ("192.168.1.9:36434", "evil.example", "0.0.0.0:36434", "localhost.evil.example")),
        *((ROACH, host) for host in ("evillocalhost", "[::]:36434", "127.1:36434", "0x7f.0.0.1", "2130706433")),
        *((LAN, host) for host in ("evil.example:8080", "192.168.1.21:8080", "other.local:8080", "[2001:db8::21]")),
        *(
            (LAN, host)
            for host in ("", ":8080", "[::1", "::1", "192.168.1.20:", "192.168.1.20:999999", "a b", "0.0.0.0")
        ),
        *((LAN, host) for host in ("192.168.1.20/x", "user@192.168.1.20", "192.168.1.20,evil.example", "\x00", "é")),
    ],
)
def test_foreign_hosts_are_refused(rule: HostRule, host: str) -> None:
    assert code(lambda: rule.check([host])) is Code.HOST_NOT_ALLOWED


@pytest.mark.parametrize("rule", [POOLED, ROACH, LAN])
def test_exactly_one_host_is_needed(rule: HostRule) -> None:
    assert code(lambda: rule.check([])) is Code.HOST_NOT_ALLOWED
    assert code(lambda: rule.check(["localhost:8080", "localhost:8080"])) is Code.HOST_NOT_ALLOWED


@pytest.mark.parametrize("rule", [POOLED, ROACH, LAN])
def test_an_absolute_request_line_is_held_to_the_same_rule(rule: HostRule) -> None:
    assert code(lambda: rule.check(["localhost:8080"], "evil.example")) is Code.HOST_NOT_ALLOWED
    assert code(lambda: rule.check(["evil.example"], "localhost:8080")) is Code.HOST_NOT_ALLOWED
    assert code(lambda: rule.check(["localhost:8080"], "localhost:8080")) is None


@pytest.mark.parametrize("kind", ["own", "exact_loopback", "loopback_names"])
def test_configured_names_are_ours_under_every_kind(kind: HostKind) -> None:
    rule = host_rule(kind, configured=("Models.Home.", "proxy.home:443"))

    assert code(lambda: rule.check(["models.home:1234"])) is None
    assert code(lambda: rule.check(["proxy.home:443"])) is None
    assert code(lambda: rule.check(["proxy.home:444"])) is Code.HOST_NOT_ALLOWED
    assert code(lambda: rule.check(["x.models.home"])) is Code.HOST_NOT_ALLOWED


def test_the_refusal_shows_the_host_without_control_characters_and_the_remedy() -> None:
    with pytest.raises(Refusal) as caught:
        LAN.check(["evil\x1b[2J.example" + "x" * 500])

    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 400
    assert "allowed_hosts" in caught.value.message


def test_the_system_is_asked_for_addresses_only_now_and_then() -> None:
    asked: list[int] = []

    def addresses() -> Collection[Address]:
        asked.append(1)
        return OWN

    rule = HostRule(kind="own", port=lambda: 8080, own_addresses=addresses)
    for number in range(200):
        code(lambda number=number: rule.check([f"10.0.0.{number}"]))  # type: ignore[misc]
        rule.check(["192.168.1.20:8080"])

    assert len(asked) < 20


@given(st.text(max_size=60))
def test_any_text_as_host_is_served_or_refused_never_a_fault(text: str) -> None:
    for rule in (POOLED, ROACH, LAN):
        assert code(lambda rule=rule: rule.check([text], text)) in (None, Code.HOST_NOT_ALLOWED)  # type: ignore[misc]


# Origins


@pytest.mark.parametrize(
    ("kind", "origin", "allowed"),
    [
        ("none_at_all", "http://127.0.0.1:8080", False),
        ("none_at_all", "null", False),
        ("none_at_all", "", False),
        *(
            ("local_apps", origin, True)
            for origin in ("http://localhost", "https://localhost:3000", "http://127.0.0.1:5")
        ),
        *(("local_apps", origin, True) for origin in ("http://[::1]:3000", "app://obsidian.md", "file://", "FILE://x")),
        *(
            ("local_apps", origin, True)
            for origin in ("tauri://localhost", "vscode-webview://0ab1", "http://tauri.localhost")
        ),
        *(
            ("local_apps", origin, False)
            for origin in ("https://evil.example", "null", "", "http://localhost.evil.example")
        ),
        *(
            ("local_apps", origin, False)
            for origin in ("http://192.168.1.9", "ftp://localhost", "localhost", "http://")
        ),
        *(("local_apps", origin, False) for origin in ("http://localhost@evil.example", "http://[", "apple://x")),
        ("own_or_none", "https://evil.example", True),  # answered, but without CORS headers
    ],
)
def test_which_pages_may_call(kind: OriginKind, origin: str, allowed: bool) -> None:
    rule = OriginRule(kind=kind)

    expected = None if allowed else Code.ORIGIN_NOT_ALLOWED
    assert code(lambda: rule.check([origin], path="/v1/models", host="192.168.1.20:8080")) is expected
    assert code(lambda: rule.check([], path="/page/", host="192.168.1.20:8080")) is None


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://192.168.1.20:8080", "192.168.1.20:8080", True),
        ("http://Pocket.local:8080", "pocket.LOCAL:8080", True),
        ("http://192.168.1.20", "192.168.1.20", True),
        ("http://192.168.1.20:80", "192.168.1.20", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://192.168.1.20:8081", "192.168.1.20:8080", False),
        ("http://192.168.1.20", "192.168.1.20:8080", False),
        ("https://evil.example", "192.168.1.20:8080", False),
        ("null", "192.168.1.20:8080", False),
        ("", "", False),
        ("http://", "", False),
        ("http://[", "192.168.1.20", False),
        ("http://192.168.1.20:x", "192.168.1.20", False),
        ("file://192.168.1.20:8080", "192.168.1.20:8080", False),
    ],
)
def test_the_page_answers_its_own_origin_alone(origin: str, host: str, allowed: bool) -> None:
    expected = None if allowed else Code.ORIGIN_NOT_ALLOWED
    rule = OriginRule(kind="own_or_none")

    assert code(lambda: rule.check([origin], path="/page/state", host=host)) is expected


@pytest.mark.parametrize("kind", ["own_or_none", "none_at_all", "local_apps"])
def test_configured_origins_may_call_and_read_under_every_kind(kind: OriginKind) -> None:
    rule = OriginRule(kind=kind, configured=("http://Tools.example:3000/",))

    assert code(lambda: rule.check(["http://tools.example:3000"], path="/page/", host="x")) is None
    assert rule.cors_headers("http://tools.example:3000")["Access-Control-Allow-Origin"] == "http://tools.example:3000"
    assert rule.cors_headers("http://tools.example:3001") == {}
    assert rule.cors_headers(None) == {}


def test_nobody_reads_across_origins_unless_configured() -> None:
    assert OriginRule(kind="own_or_none").cors_headers("http://192.168.1.20:8080") == {}
    assert OriginRule(kind="own_or_none").preflight_headers("https://evil.example") is None
    assert OriginRule(kind="local_apps").cors_headers("http://localhost:3000") != {}


def test_a_preflight_is_answered_with_what_the_page_asked_for() -> None:
    rule = OriginRule(kind="own_or_none", configured=("http://tools.example",))

    headers = rule.preflight_headers(
        "http://tools.example", requested_headers="authorization,x-stainless-os", private_network=True
    )

    assert headers is not None
    assert headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"
    assert headers["Access-Control-Allow-Private-Network"] == "true"
    assert "POST" in headers["Access-Control-Allow-Methods"]
    assert "Origin" in headers["Vary"]


def test_a_preflight_never_echoes_what_is_no_list_of_names() -> None:
    rule = OriginRule(kind="own_or_none", configured=("*",))

    headers = rule.preflight_headers("https://any.example", requested_headers="x\r\nSet-Cookie: a=b")

    assert headers is not None
    assert "Set-Cookie" not in str(headers)
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in headers
    assert "Access-Control-Allow-Private-Network" not in headers


def test_the_refusal_names_the_origin_and_how_to_allow_it() -> None:
    with pytest.raises(Refusal) as caught:
        OriginRule(kind="none_at_all").check(["https://evil.example"])

    assert "https://evil.example" in caught.value.message
    assert "allowed_origins" in caught.value.message


# Peers

LINKS: tuple[Network, ...] = (ipaddress.ip_network("100.64.3.0/24"), ipaddress.ip_network("3fff:1::/64"))
LOCAL = ("127.0.0.1", "::1", "192.168.1.7", "10.1.2.3", "172.16.0.1", "169.254.3.4", "fe80::1%eth0", "fd00::7")
ON_LINK = ("100.64.3.9", "3fff:1::9", "::ffff:100.64.3.9", "::ffff:192.168.1.7")
FOREIGN = (
    "8.8.8.8",
    "100.64.4.9",
    "198.41.0.4",
    "2a00:1450::1",
    "::ffff:8.8.8.8",
    "",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "x",
    "1.2.3",
)


@pytest.mark.parametrize(
    ("kind", "peer", "allowed"),
    [
        *(("local", peer, True) for peer in LOCAL + ON_LINK),
        *(("local", peer, False) for peer in FOREIGN),
        *(("loopback", peer, True) for peer in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")),
        *(("loopback", peer, False) for peer in LOCAL[2:] + ON_LINK + FOREIGN),
    ],
)
def test_who_may_connect(kind: PeerKind, peer: str, allowed: bool) -> None:
    rule = PeerRule(kind=kind, networks=lambda: LINKS)

    for _ in range(2):
        assert code(lambda: rule.check(peer)) is (None if allowed else Code.PEER_NOT_LOCAL)


def test_allow_public_lets_everybody_in() -> None:
    rule = PeerRule(kind="local", allow_public=True)

    assert code(lambda: rule.check("8.8.8.8")) is None


def test_the_refusal_of_a_peer_names_the_setting() -> None:
    with pytest.raises(Refusal, match="allow_public"):
        PeerRule(kind="local").check("8.8.8.8")
