"""python-zeroconf, with the three rules of the standard that it leaves to others. Nothing of ours is decided here.

1. An address record goes out only on the link that the address belongs to (RFC 6762 section 14).
2. An instance name is one label on the wire, dots and all (RFC 6763 section 4.3); the library splits it at each dot.
3. Probes ask for a multicast answer: an answer sent to port 5353 of a machine with several responders reaches only one
   of them, so that the second server of a machine would never hear the first.

All three hook into `async_send` and `generate_service_query`, public methods through which everything is sent.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import cast

from zeroconf import ServiceInfo, Zeroconf
from zeroconf._dns import DNSAddress, DNSPointer, DNSQuestion, DNSRecord
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf._transport import _WrappedTransport
from zeroconf.const import _CLASS_IN, _FLAGS_AA, _FLAGS_QR_QUERY, _TYPE_PTR

from pocketserver.lan.address import Candidate

_MDNS_PORT = 5353
_INSTANCE = re.compile(r"(?P<label>.+)\.(?P<type>_[^.]+\._(?:tcp|udp)\.local\.)", re.DOTALL | re.IGNORECASE)
_TYPE_FOLLOWS = rb"(?=[\xc0-\xff]|[\x02-\x10]_)"  # a pointer to a type written before, or a type's own label


@dataclass(frozen=True, slots=True)
class Link:
    """A network this machine is on, and its one address there that is announced."""

    address: IPv4Address
    network: IPv4Network


def links_of(candidates: Iterable[Candidate]) -> tuple[Link, ...]:
    """One link a network, the best first. IPv6 addresses are not announced."""
    found: dict[IPv4Network, Link] = {}
    for candidate in candidates:
        address, network = candidate.ip, candidate.network
        if isinstance(address, IPv4Address) and isinstance(network, IPv4Network):
            found.setdefault(network, Link(address, network))
    return tuple(found.values())


class Responder(Zeroconf):
    """A `Zeroconf` on exactly these links. Raises `OSError` when port 5353 cannot be shared."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = {str(link.address): link for link in links}
        super().__init__(interfaces=list(self._links))

    def generate_service_query(self, info: ServiceInfo) -> DNSOutgoing:
        """The probe for a name, asking for a multicast answer (rule 3)."""
        out = DNSOutgoing(_FLAGS_QR_QUERY | _FLAGS_AA)
        out.add_question(DNSQuestion(info.type, _TYPE_PTR, _CLASS_IN))
        out.add_authorative_answer(info.dns_pointer())
        return out

    def async_send(
        self,
        out: DNSOutgoing,
        addr: str | None = None,
        port: int = _MDNS_PORT,
        v6_flow_scope: tuple[()] | tuple[int, int] = (),
        transport: _WrappedTransport | None = None,
    ) -> None:
        """Send a message, on each link with that link's addresses (rule 1) and with whole labels (rule 2)."""
        for sender in [transport] if transport else list(self.engine.senders):
            link = self._link_of(addr, sender)
            rendered = _OneLabelMessage(_for_link(out, link, self._links.values()))
            super().async_send(cast("DNSOutgoing", rendered), addr, port, v6_flow_scope, sender)

    def _link_of(self, addr: str | None, sender: _WrappedTransport) -> Link | None:
        """The link by the socket that sends, or, for an answer to one peer, by the peer's address."""
        sending = self._links.get(str(sender.sock_name[0]))
        if sending is not None or addr is None:
            return sending
        peer = ipaddress.ip_address(addr.partition("%")[0])
        return next((link for link in self._links.values() if peer in link.network), None)


class _OneLabelMessage:
    """Stands in for a message where it is rendered: the same packets, each instance name as one label."""

    def __init__(self, out: DNSOutgoing) -> None:
        self._out = out

    def packets(self) -> list[bytes]:
        """The wire format of the message."""
        return [join_labels(packet, instance_labels(self._out)) for packet in self._out.packets()]

    def __repr__(self) -> str:
        return repr(self._out)


def instance_labels(out: DNSOutgoing) -> set[str]:
    """The instance names in a message that contain dots."""
    matches = (_INSTANCE.fullmatch(name) for name in _names(out))
    return {match["label"] for match in matches if match and "." in match["label"]}


def join_labels(packet: bytes, labels: Iterable[str]) -> bytes:
    """Make one label of each of these names where the packet has it split at its dots.

    Both forms have the same length (the inner length bytes become the dots), so that every offset and pointer holds.
    """
    for label in labels:
        whole = label.encode("utf-8", "replace")
        if len(whole) <= 63 and not label.endswith("._sub"):
            split = b"".join(bytes([len(part)]) + part for part in whole.split(b"."))
            joined = bytes([len(whole)]) + whole
            pattern = re.compile(re.escape(split) + _TYPE_FOLLOWS, re.DOTALL)
            packet = joined.join(pattern.split(packet))
    return packet


def _names(out: DNSOutgoing) -> Iterator[str]:
    for question in out.questions:
        yield question.name
    for record in _records(out):
        yield record.name
        if isinstance(record, DNSPointer):
            yield record.alias


def _records(out: DNSOutgoing) -> Iterator[DNSRecord]:
    yield from (record for record, _ in out.answers)
    yield from out.authorities
    yield from out.additionals


def _for_link(out: DNSOutgoing, link: Link | None, links: Iterable[Link]) -> DNSOutgoing:
    """A copy of the message without the addresses of other links."""
    others = {other.address.packed for other in links if link is not None and other != link}
    copy = DNSOutgoing(out.flags, out.multicast, out.id)
    for question in out.questions:
        copy.add_question(question)
    for record, now in out.answers:
        if not _is_address_among(record, others):
            copy.add_answer_at_time(record, now)
    for authority in out.authorities:
        copy.add_authorative_answer(authority)
    for additional in out.additionals:
        if not _is_address_among(additional, others):
            copy.add_additional_answer(additional)
    return copy


def _is_address_among(record: DNSRecord, addresses: set[bytes]) -> bool:
    return isinstance(record, DNSAddress) and record.address in addresses
