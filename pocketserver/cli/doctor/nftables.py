"""What a Linux packet filter does with a new connection from the network, read from `nft -j list ruleset`.

Only what can be known from the rules alone is decided; a rule that looks at anything else makes the verdict unsure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_MOST_JUMPS = 16
_FAMILIES = frozenset({"inet", "ip"})


class Verdict(StrEnum):
    """What happens to the packet."""

    ACCEPTED = "accepted"
    BLOCKED = "blocked"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of somebody else: `protocol` is tcp or udp."""

    protocol: str
    port: int


def verdict(ruleset: Mapping[str, Any], packet: Packet) -> Verdict:
    """The verdict of all input chains together: one that blocks is enough."""
    found = [_Chains(ruleset).of(chain, packet) for chain in _input_chains(ruleset)]
    for wanted in (Verdict.BLOCKED, Verdict.UNSURE):
        if wanted in found:
            return wanted
    return Verdict.ACCEPTED


def _items(ruleset: Mapping[str, Any], kind: str) -> Iterable[Mapping[str, Any]]:
    return (item[kind] for item in ruleset.get("nftables", ()) if kind in item)


def _input_chains(ruleset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        chain
        for chain in _items(ruleset, "chain")
        if chain.get("hook") == "input" and chain.get("type") == "filter" and chain.get("family") in _FAMILIES
    ]


class _Chains:
    def __init__(self, ruleset: Mapping[str, Any]) -> None:
        self._rules: dict[tuple[str, str, str], list[Sequence[Mapping[str, Any]]]] = {}
        for rule in _items(ruleset, "rule"):
            key = (rule["family"], rule["table"], rule["chain"])
            self._rules.setdefault(key, []).append(rule.get("expr", ()))

    def of(self, chain: Mapping[str, Any], packet: Packet) -> Verdict:
        """A base chain: its rules, then its policy."""
        end = self._through((chain["family"], chain["table"]), chain["name"], packet, _MOST_JUMPS)
        if end is not None:
            return end
        return Verdict.BLOCKED if chain.get("policy") == "drop" else Verdict.ACCEPTED

    def _through(self, table: tuple[str, str], chain: str, packet: Packet, jumps: int) -> Verdict | None:
        """What the chain's rules decide, None when they decide nothing."""
        if jumps == 0:
            return Verdict.UNSURE
        perhaps = False
        for expressions in self._rules.get((*table, chain), ()):
            matches = _matches(expressions, packet)
            action = None if matches is False else self._action(table, expressions, packet, jumps)
            if action is _RETURN and matches:
                break
            if not isinstance(action, Verdict):
                continue
            if matches and not (perhaps and action is Verdict.BLOCKED):
                return action
            if matches:
                return Verdict.UNSURE
            perhaps = perhaps or action is not Verdict.BLOCKED
        return Verdict.UNSURE if perhaps else None

    def _action(
        self, table: tuple[str, str], expressions: Sequence[Mapping[str, Any]], packet: Packet, jumps: int
    ) -> object:
        for expression in expressions:
            for word, value in expression.items():
                match word:
                    case "accept":
                        return Verdict.ACCEPTED
                    case "drop" | "reject":
                        return Verdict.BLOCKED
                    case "return":
                        return _RETURN
                    case "jump" | "goto":
                        return self._through(table, str(value["target"]), packet, jumps - 1)
                    case "vmap" | "queue":
                        return Verdict.UNSURE
                    case _:
                        continue
        return None


_RETURN = object()


def _matches(expressions: Iterable[Mapping[str, Any]], packet: Packet) -> bool | None:
    """Whether a rule is for this packet; None when that depends on what is not known."""
    unsure = False
    for expression in expressions:
        if "match" in expression:
            one = _one(expression["match"], packet)
            if one is False:
                return False
            unsure = unsure or one is None
        elif "xt" in expression:  # an extension of iptables, which nft cannot read
            unsure = True
    return None if unsure else True


def _one(match: Mapping[str, Any], packet: Packet) -> bool | None:
    left, right, operator = match.get("left"), match.get("right"), match.get("op")
    known = _left(left, right, packet) if isinstance(left, dict) else None
    if known is None or operator not in {"==", "!=", "in"}:
        return None
    return not known if operator == "!=" else known


def _left(left: Mapping[str, Any], right: object, packet: Packet) -> bool | None:
    if payload := left.get("payload"):
        if payload.get("field") == "dport":
            return _holds(right, packet.port) if payload.get("protocol") in {packet.protocol, "th"} else False
        return _holds(right, packet.protocol) if payload.get("field") == "protocol" else None
    if meta := left.get("meta"):
        if meta.get("key") == "l4proto":
            return _holds(right, packet.protocol)
        return False if meta.get("key") in {"iif", "iifname"} and right == "lo" else None
    if (ct := left.get("ct")) and ct.get("key") == "state":
        return _holds(right, "new")
    return None


def _holds(right: object, value: int | str) -> bool | None:
    """Whether a value is on the right side: a constant, a range, a list, or a named set (unknown)."""
    match right:
        case {"set": list(entries)} | list(entries):
            found = [_holds(entry, value) for entry in entries]
            return True if True in found else None if None in found else False
        case {"range": [int(low), int(high)]}:
            return isinstance(value, int) and low <= value <= high
        case str() if right.startswith("@"):
            return None
        case int() | str():
            return bool(right == value)
        case _:
            return None
