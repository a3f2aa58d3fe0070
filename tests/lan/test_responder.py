"""Instance names are one label on the wire: tried on packets that the library builds."""

import pytest
from zeroconf import ServiceInfo
from zeroconf._protocol.incoming import DNSIncoming
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.const import _FLAGS_AA, _FLAGS_QR_RESPONSE

from pocketserver.lan.responder import instance_labels, join_labels

KIND = "_http._tcp.local."


@pytest.mark.parametrize("label", ["v1.2", "a.b.c", ".hidden", "ends.", "x..y", "é.猫", "_http._tcp.box", "plain"])
def test_dots_stay_inside_the_label(label: str) -> None:
    info = ServiceInfo(KIND, f"{label}.{KIND}", port=80, server="pocket-1.local.", addresses=[b"\x0a\x00\x00\x01"])
    out = DNSOutgoing(_FLAGS_QR_RESPONSE | _FLAGS_AA)
    for record in (info.dns_pointer(), info.dns_service(), info.dns_text(), *info.dns_addresses()):
        out.add_answer_at_time(record, 0)
    [split] = out.packets()

    packet = join_labels(split, instance_labels(out))

    whole = label.encode()
    assert packet.count(bytes([len(whole)]) + whole) == 1
    assert len(packet) == len(split)
    assert {record.name for record in DNSIncoming(packet).answers()} == {KIND, f"{label}.{KIND}", "pocket-1.local."}


def test_a_name_that_cannot_be_one_label_is_left_alone() -> None:
    packet = b"\x03abc\x05_http"
    assert join_labels(packet, ["a" * 40 + "." + "b" * 40]) == packet
