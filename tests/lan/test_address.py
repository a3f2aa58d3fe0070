"""Which address is shown, as tables of plain values; and that the real machine can be asked."""

import ipaddress

import pytest

from pocketserver.errors import StartupError
from pocketserver.lan.address import (
    Candidate,
    Interface,
    Kind,
    candidates,
    choose,
    is_local_peer,
    networks_of,
    on_link_networks,
    own_addresses,
    rank,
    score,
)
from pocketserver.lan.responder import links_of

MULTICAST = frozenset({"up", "broadcast", "running", "multicast"})
POINT_TO_POINT = frozenset({"up", "pointopoint", "running", "noarp", "multicast"})

LOOPBACK = Interface(name="lo", address="127.0.0.1", prefix_length=8, flags=frozenset({"up", "loopback", "running"}))
DOCKER = Interface(name="docker0", address="172.17.0.1", prefix_length=16, flags=MULTICAST)
COMPOSE = Interface(name="br-0a1b2c3d4e5f", address="172.18.0.1", prefix_length=16, flags=MULTICAST)
VPN = Interface(name="tun0", address="10.8.0.2", prefix_length=24, flags=POINT_TO_POINT)
TAILSCALE = Interface(name="tailscale0", address="100.101.102.103", prefix_length=32, flags=POINT_TO_POINT)
WIFI = Interface(name="wlan0", address="192.168.50.20", prefix_length=24, flags=MULTICAST)
CABLE = Interface(name="enp3s0", address="10.1.2.3", prefix_length=24, flags=MULTICAST)
ULA = Interface(name="wlan0", address="fd12::20", prefix_length=64, flags=MULTICAST)
GLOBAL6 = Interface(name="wlan0", address="2a02:8071::20", prefix_length=64, flags=MULTICAST)
LINK_LOCAL6 = Interface(name="wlan0", address="fe80::20", prefix_length=64, flags=MULTICAST)
SELF_ASSIGNED = Interface(name="eth0", address="169.254.7.7", prefix_length=16, flags=MULTICAST)
PUBLIC = Interface(name="eth0", address="8.8.4.4", prefix_length=24, flags=MULTICAST)


def routed(interface: Interface) -> Interface:
    return Interface(
        name=interface.name,
        address=interface.address,
        prefix_length=interface.prefix_length,
        flags=interface.flags,
        has_default_route=True,
    )


@pytest.mark.parametrize(
    ("interfaces", "best"),
    [
        pytest.param([LOOPBACK, DOCKER, VPN, routed(WIFI)], "192.168.50.20", id="decoys"),
        pytest.param([LOOPBACK, DOCKER, VPN, WIFI], "192.168.50.20", id="no default route"),
        pytest.param([LOOPBACK, routed(VPN), WIFI], "192.168.50.20", id="the VPN owns the default route"),
        pytest.param([routed(TAILSCALE), WIFI], "192.168.50.20", id="carrier-range VPN"),
        pytest.param([routed(COMPOSE), DOCKER, WIFI], "192.168.50.20", id="a container bridge owns the default route"),
        pytest.param([CABLE, WIFI], "192.168.50.20", id="Wi-Fi before a cable"),
        pytest.param([routed(CABLE), WIFI], "10.1.2.3", id="the default route decides between two LANs"),
        pytest.param([ULA, GLOBAL6, WIFI], "192.168.50.20", id="IPv4 first"),
        pytest.param([LINK_LOCAL6, ULA, GLOBAL6], "fd12::20", id="unique local before global"),
        pytest.param([PUBLIC, SELF_ASSIGNED], "8.8.4.4", id="public before self-assigned"),
        pytest.param([LOOPBACK, SELF_ASSIGNED, VPN], "169.254.7.7", id="self-assigned before a VPN"),
        pytest.param([LOOPBACK, VPN], "10.8.0.2", id="a VPN before this machine only"),
        pytest.param([LOOPBACK, routed(DOCKER)], "127.0.0.1", id="a container bridge is worth less than loopback"),
    ],
)
def test_the_address_another_device_reaches_comes_first(interfaces: list[Interface], best: str) -> None:
    assert rank(interfaces)[0].address == best


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("wlan0", Kind.LAN),
        ("en0", Kind.LAN),
        ("Wi-Fi", Kind.LAN),
        ("Ethernet 2", Kind.LAN),
        ("br-lan", Kind.LAN),
        ("br0", Kind.LAN),
        ("vmbr0", Kind.LAN),
        ("docker0", Kind.CONTAINER),
        ("br-0a1b2c3d4e5f", Kind.CONTAINER),
        ("vEthernet (WSL)", Kind.CONTAINER),
        ("VirtualBox Host-Only Network", Kind.CONTAINER),
        ("bridge100", Kind.CONTAINER),
        ("virbr0", Kind.CONTAINER),
        ("awdl0", Kind.CONTAINER),
        ("utun4", Kind.VPN),
        ("wg0", Kind.VPN),
        ("Tailscale", Kind.VPN),
        ("ZeroTier One", Kind.VPN),
    ],
)
def test_interface_names_of_three_systems(name: str, kind: Kind) -> None:
    assert score(Interface(name=name, address="192.168.9.9", prefix_length=24)).kind is kind


def test_an_interface_that_cannot_multicast_is_no_lan() -> None:
    odd = Interface(name="weird0", address="10.9.9.9", prefix_length=24, flags=POINT_TO_POINT)
    assert score(odd).kind is Kind.VPN


def test_what_is_down_or_needs_a_zone_is_left_out() -> None:
    down = Interface(name="eth0", address="192.168.1.2", prefix_length=24, is_up=False, flags=MULTICAST)
    assert [candidate.address for candidate in rank([down, LINK_LOCAL6, WIFI])] == ["192.168.50.20"]


def test_each_link_is_announced_and_no_decoy() -> None:
    choice = choose(None, "0.0.0.0", rank([LOOPBACK, DOCKER, VPN, TAILSCALE, WIFI, CABLE, ULA, GLOBAL6]))

    assert [candidate.address for candidate in choice.announced] == ["192.168.50.20", "10.1.2.3"]
    assert {candidate.address for candidate in choice.others} >= {"172.17.0.1", "10.8.0.2", "127.0.0.1"}


def test_links_come_with_the_shown_address_first_and_once_a_network() -> None:
    second = Interface(name="wlan1", address="192.168.50.21", prefix_length=24, flags=MULTICAST)

    links = links_of(choose(None, "0.0.0.0", rank([CABLE, second, WIFI, ULA])).announced)

    assert [str(link.address) for link in links] == ["192.168.50.20", "10.1.2.3"]


def test_self_assigned_addresses_are_announced_when_there_is_nothing_better() -> None:
    assert [c.address for c in choose(None, "::", rank([LOOPBACK, SELF_ASSIGNED])).announced] == ["169.254.7.7"]


@pytest.mark.parametrize("bind_host", ["127.0.0.1", "localhost"])
def test_nothing_is_announced_on_loopback(bind_host: str) -> None:
    choice = choose(None, bind_host, rank([LOOPBACK, WIFI]))

    assert choice.primary.address == "127.0.0.1"
    assert choice.announced == ()


def test_a_server_on_one_address_announces_that_one() -> None:
    choice = choose(None, "10.1.2.3", rank([LOOPBACK, WIFI, CABLE]))

    assert choice.primary.address == "10.1.2.3"
    assert [candidate.address for candidate in choice.announced] == ["10.1.2.3"]
    assert choice.others == ()


@pytest.mark.parametrize("advertise", ["10.8.0.2", "tun0"])
def test_advertise_takes_an_address_or_an_interface(advertise: str) -> None:
    choice = choose(advertise, "0.0.0.0", rank([LOOPBACK, WIFI, VPN]))

    assert choice.primary.address == "10.8.0.2"
    assert [candidate.address for candidate in choice.announced] == ["10.8.0.2"]
    assert [candidate.address for candidate in choice.others] == ["192.168.50.20", "127.0.0.1"]


@pytest.mark.parametrize(
    ("advertise", "bind_host", "told"),
    [
        ("192.168.1.99", "0.0.0.0", "Choose one of: 192.168.50.20 (wlan0), 127.0.0.1 (lo)."),
        ("wlan7", "0.0.0.0", "wlan7 is no address or interface"),
        ("wlan0", "127.0.0.1", "the server listens on 127.0.0.1 only"),
    ],
)
def test_an_advertise_that_fits_nothing_is_explained(advertise: str, bind_host: str, told: str) -> None:
    with pytest.raises(StartupError) as refused:
        choose(advertise, bind_host, rank([LOOPBACK, WIFI]))
    assert told in str(refused.value)


def test_a_machine_without_any_address_shows_loopback() -> None:
    choice = choose(None, "0.0.0.0", [])

    assert (choice.primary.address, choice.others, choice.announced) == ("127.0.0.1", (), ())


def test_ipv6_is_bracketed_in_urls() -> None:
    assert [candidate.url_host for candidate in rank([WIFI, ULA])] == ["192.168.50.20", "[fd12::20]"]


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("192.168.7.7", True),
        ("::ffff:192.168.7.7", True),
        ("fe80::1%wlan0", True),
        ("fd00::5", True),
        ("169.254.1.1", True),
        ("8.8.4.200", True),
        ("2a02:8071::99", True),
        ("100.64.3.4", True),
        ("8.8.8.8", False),
        ("::ffff:8.8.8.8", False),
        ("2a02:9999::1", False),
        ("0.0.0.0", False),
        ("224.0.0.251", False),
        ("", False),
        ("not an address", False),
    ],
)
def test_local_peers(peer: str, is_local: bool) -> None:
    assert is_local_peer(peer, networks_of([LOOPBACK, WIFI, PUBLIC, GLOBAL6, TAILSCALE])) is is_local


def test_the_carrier_range_is_local_only_inside_a_vpn() -> None:
    provider = Interface(name="eth0", address="100.70.0.5", prefix_length=24, flags=MULTICAST)
    networks = networks_of([provider])

    assert is_local_peer("100.70.0.9", networks)
    assert not is_local_peer("100.71.0.9", networks)


def test_a_link_as_wide_as_the_world_is_ignored() -> None:
    assert networks_of([Interface(name="eth0", address="8.8.4.4", prefix_length=0)]) == ()


def test_this_machine_knows_its_own_addresses() -> None:
    assert ipaddress.ip_address("127.0.0.1") in own_addresses()
    assert any(ipaddress.ip_address("127.0.0.1") in network for network in on_link_networks() if network.version == 4)
    found = candidates()
    assert {candidate.ip for candidate in found} <= own_addresses()
    assert all(isinstance(candidate, Candidate) and candidate.reason for candidate in found)
