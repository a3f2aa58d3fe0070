"""Texts of the formats that llguidance knows, as patterns: a pretty one, then one that has (nearly) all."""

_YEAR = r"[1-9][0-9]{3}"
_LEAP_YEAR = r"(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_PRETTY_DATE = r"20[0-3][0-9]-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_PRETTY_TIME = r"(?:0[6-9]|1[0-9]|2[0-2]):[0-5][0-9]:[0-5][0-9]Z"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9a-fA-F]{1,4}"
_HEX = "[0-9a-fA-F]"
_CLOCK = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})"
_WITH_HOST = rf"//{_HOST}(?::[0-9]{{1,5}})?(?:/{_PCHAR}*)*"

PATTERNS: dict[str, tuple[str, str]] = {
    "date": (_PRETTY_DATE, _DATE),
    "time": (_PRETTY_TIME, _TIME),
    "date-time": (f"{_PRETTY_DATE}T{_PRETTY_TIME}", f"{_DATE}T{_TIME}"),
    "duration": (
        "P(?:[1-9]D|T[1-9]H|T[1-9][05]M|[1-9]DT[1-9]H)",
        rf"P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:{_CLOCK})?|{_CLOCK})",
    ),
    "email": (
        "[a-z]{4,8}@example[.](?:com|org)",
        rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_HOST}",
    ),
    "hostname": ("[a-z]{4,8}[.]example[.](?:com|org)", _HOST),
    "ipv4": (r"192\.0\.2\.(?:[1-9][0-9]?|1[0-9][0-9])", _IPV4),
    "ipv6": (
        "2001:db8::[1-9a-f][0-9a-f]{0,3}",
        rf"(?:(?:{_H16}:){{7}}{_H16}|(?:{_H16}:){{1,6}}:{_H16}|::(?:{_H16}(?::{_H16}){{0,5}})?|(?:{_H16}:){{1,7}}:)",
    ),
    "uuid": (
        "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
        f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    ),
    "uri": (
        "https://example[.](?:com|org)/[a-z]{3,8}",
        rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{_WITH_HOST}|{_PCHAR}+(?:/{_PCHAR}*)*)(?:\?{_PCHAR}*)?(?:#{_PCHAR}*)?",
    ),
}
ANYTHING = "unknown"
"""A format that llguidance knows and that asks for nothing."""
