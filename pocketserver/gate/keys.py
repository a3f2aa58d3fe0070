"""Who holds a key: the main key, named keys with scopes, and how a request's headers are compared with them."""

import asyncio
import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pocketserver.errors import Code, Refusal, StartupError, UsageError
from pocketserver.gate import key_file
from pocketserver.gate.key_file import Keys, MainKey, NamedKey

SCOPES = ("chat", "metrics", "admin")
"""What a key may be good for: the model, the figures, and what only the owner does."""
MAIN = "main"
"""The name of the owner's key. It has every scope."""
MOST_KEYS = 256
"""Each request is compared with every key, so their number is bounded."""

_USES_FILE = "key_uses.json"
_CHECK_SECONDS = 0.5
_USES_SECONDS = 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_FORM = "Send the header `Authorization: Bearer sk-…`"
_WHERE = "the owner of the server finds the key with `pocketserver key show`"
_MISSING: Mapping[str, str] = {
    "metrics": (
        f"The metrics need a key. {_FORM}. For Prometheus run `pocketserver key new prometheus --scope metrics` on the "
        "server, write what it prints into a file, and name that file in the scrape_configs: "
        "`authorization: {credentials_file: FILE}`."
    )
}
"""What a request without a key is told, by the scope it needed; see `_FORM` for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose key a request carries. `digest` tells a key from a later one of the same name."""

    name: str
    scopes: frozenset[str]
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """A key as lists show it; times are Unix seconds. `last_used` is a best effort, up to a minute late."""

    name: str
    scopes: tuple[str, ...]
    last4: str
    created: int
    last_used: int | None


class KeyStore:
    """The keys in one folder, shared with other processes: what they change takes effect here without a restart.

    `main_key_override` is the main key for this run; it is never written to disk. The constructor touches no file.
    Methods that change keys lock the folder and wait for the disk: call them in a thread. `authenticate` looks at the
    file's stamp at most twice a second, and once for each unknown key (so that a new key works at once).
    """

    def __init__(
        self, folder: Path, *, main_key_override: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._override = main_key_override
        self._clock = clock
        self._refreshing = threading.Lock()
        self._stamp: key_file.Stamp | None = None
        self._identities = _identities(Keys(), main_key_override)
        self._checked = float("-inf")
        self._seen: dict[bytes, Identity] = {}  # keys of earlier readings, however short they lived; see `watch`
        self._accepted: dict[str, Identity] = {}
        """By Authorization headers that were right. A look-up by hash tells nobody which key was near."""
        self._uses: dict[str, int] = {}
        self._uses_written = self._clock()
        self.problem: str | None = None
        """Why the file as it is now is not used (the keys read before stay good); None when all is well."""

    # Asked for each request

    def authenticate(
        self, authorization: Sequence[str], x_api_key: Sequence[str] = (), *, scope: str = "chat"
    ) -> Identity:
        """The identity behind a request's headers, all values of each as received.

        One right key among them is enough. `scope` chooses the words for a client without a key; it is not checked,
        see `require`. Raises MISSING_API_KEY or INVALID_API_KEY.
        """
        self._refresh_now_and_then()
        accepted = self._accepted  # as it is now: a key that is revoked meanwhile begins a new one
        identity = accepted.get(authorization[0]) if len(authorization) == 1 and not x_api_key else None
        if identity is None:
            identity = self._compared(authorization, x_api_key, scope)
            if len(authorization) == 1 and not x_api_key and len(accepted) < MOST_KEYS:
                accepted[authorization[0]] = identity
        self._uses[identity.name] = int(time.time())
        return identity

    def _compared(self, authorization: Sequence[str], x_api_key: Sequence[str], scope: str) -> Identity:
        given = [key for key in (*x_api_key, *_bearer_tokens(authorization)) if key]
        if not given:
            raise Refusal(Code.MISSING_API_KEY, _missing(authorization, scope))
        if len(authorization) > 1 or len(x_api_key) > 1:
            raise Refusal(Code.INVALID_API_KEY, f"{_FORM} once, with one key.")
        identity = self._find(given)
        if identity is None:
            raise Refusal(Code.INVALID_API_KEY, f"This API key is not known here. {_FORM}; {_WHERE}.")
        return identity

    def find_by(self, fits: Callable[[bytes], bool], *, scope: str) -> Identity | None:
        """The identity with this scope whose SHA-256 digest fits; for who proves a key without sending it.

        All of them are tried, so that the time taken tells nothing. None when nobody's does.
        """
        self._refresh_now_and_then()
        found = self._fitting(fits, scope)
        if found is None:
            self.refresh()  # perhaps it was made a moment ago
            found = self._fitting(fits, scope)
        if found is not None:
            self._uses[found.name] = int(time.time())
        return found

    def require(self, identity: Identity, scope: str) -> None:
        """Raise INSUFFICIENT_SCOPE, naming the scope, unless the key has it."""
        if scope not in identity.scopes:
            raise Refusal(
                Code.INSUFFICIENT_SCOPE,
                f"The key '{identity.name}' lacks the scope '{scope}'. A key that has it is made on the server with "
                f"`pocketserver key new NAME --scope {scope}`.",
            )

    def is_valid(self, who: Identity | str) -> bool:
        """Whether a key is (still) good: an identity's very key, or any key of that name."""
        self._refresh_now_and_then()
        if isinstance(who, str):
            return any(identity.name == who for identity in self._identities)
        return any(identity.digest == who.digest for identity in self._identities)

    async def watch(self, on_revoked: Callable[[Identity], None], *, every_seconds: float = 0.4) -> None:
        """Run until cancelled: call `on_revoked` for each key that is gone, and keep note of last uses.

        The server owns this as a task. While it runs, `authenticate` does not look at the file for known keys.
        """
        self.refresh()
        self._seen.clear()
        while True:
            await asyncio.sleep(every_seconds)
            await asyncio.to_thread(self._look_after_files)
            present = {identity.digest for identity in self._identities}
            gone = [identity for digest, identity in self._seen.items() if digest not in present]
            self._seen.clear()
            for identity in gone:
                on_revoked(identity)

    # For the owner

    def main_key(self) -> str:
        """The main key, made now when there is none yet. Raises StartupError when the folder cannot be used."""
        if self._override is not None:
            return self._override
        found = key_file.read(self._folder).main
        return found.key if found else self._change(_with_main).main_key

    def new(self, name: str, scopes: Iterable[str] = ("chat",)) -> str:
        """Make a named key and return it; it cannot be shown again. Raises UsageError for a name or scope that cannot
        be, StartupError when the name is taken."""
        chosen = _checked_scopes(scopes)
        _check_name(name)
        key = _fresh_key()
        named = NamedKey(name=name, sha256=_digest(key).hex(), scopes=chosen, created=int(time.time()), last4=key[-4:])
        self._change(lambda keys: _with_named(keys, named))
        return key

    def revoke(self, name: str) -> None:
        """Take a key away. Revoking the main key puts a new one in its place. Raises StartupError for unknown names."""
        self._change(_with_new_main if name == MAIN else lambda keys: _without(keys, name))

    def list(self) -> Sequence[KeyInfo]:
        """Every key, the main one first, without the keys themselves."""
        keys = key_file.read(self._folder)
        uses = {**self._stored_uses(), **self._uses}
        rows = [_main_info(keys.main, uses)] if keys.main else []
        return [*rows, *(_named_info(named, uses) for named in keys.named)]

    def refresh(self) -> None:
        """Read the file if it was replaced. A file that cannot be used leaves the keys as they were; see `problem`."""
        with self._refreshing:
            self._checked = self._clock()
            try:
                stamp = key_file.stamp(self._folder)
                if stamp != self._stamp or self.problem is not None:
                    self._seen.update({identity.digest: identity for identity in self._identities})
                    self._identities = _identities(key_file.read(self._folder), self._override)
                    self._accepted = {}
                    self._stamp = stamp
            except StartupError as error:
                self.problem = str(error)
            else:
                self.problem = None

    # Helpers

    def _find(self, given: Sequence[str]) -> Identity | None:
        self._refresh_now_and_then()
        found = _match(given, self._identities)
        if found is None:
            self.refresh()  # perhaps it was made a moment ago
            found = _match(given, self._identities)
        return found

    def _fitting(self, fits: Callable[[bytes], bool], scope: str) -> Identity | None:
        fitting = [identity for identity in self._identities if scope in identity.scopes and fits(identity.digest)]
        return fitting[0] if fitting else None

    def _refresh_now_and_then(self) -> None:
        if self._clock() - self._checked > _CHECK_SECONDS:
            self.refresh()

    def _change(self, change: Callable[[Keys], Keys]) -> "_Changed":
        with key_file.locked(self._folder):
            keys = change(key_file.read(self._folder))
            key_file.write(self._folder, keys)
        self.refresh()
        return _Changed(keys)

    def _look_after_files(self) -> None:
        self.refresh()
        if self._uses and self._clock() - self._uses_written > _USES_SECONDS:
            self.write_uses()

    def write_uses(self) -> None:
        """Note on disk when each key was last used; failing is no harm. The server calls it once more at its end."""
        self._uses_written = self._clock()
        uses = dict(self._uses)
        try:
            with key_file.locked(self._folder):
                stored = self._stored_uses()
                merged = {name: max(used, stored.get(name, 0)) for name, used in {**stored, **uses}.items()}
                key_file.write_private(self._folder / _USES_FILE, msgspec.json.encode(merged))
        except StartupError:
            return

    def _stored_uses(self) -> dict[str, int]:
        try:
            return msgspec.json.decode((self._folder / _USES_FILE).read_bytes(), type=dict[str, int])
        except (OSError, msgspec.MsgspecError):
            return {}


@dataclass(frozen=True, slots=True)
class _Changed:
    keys: Keys

    @property
    def main_key(self) -> str:
        assert self.keys.main is not None
        return self.keys.main.key


# Comparing


def _digest(key: str) -> bytes:
    # Header bytes that are no UTF-8 arrive as lone surrogates; an encoder that refuses them would turn a wrong key
    # into a fault of ours.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _match(given: Sequence[str], identities: Sequence[Identity]) -> Identity | None:
    """Compare with every key, so that the time taken tells nothing about which one was near."""
    found: Identity | None = None
    for digest in map(_digest, given):
        for identity in identities:
            if hmac.compare_digest(digest, identity.digest):
                found = found or identity
    return found


def _bearer_tokens(values: Sequence[str]) -> list[str]:
    """The keys in Authorization headers; the scheme is compared without case (RFC 9110, 11.1)."""
    parts = [value.strip().partition(" ") for value in values]
    return [token.strip() for scheme, _, token in parts if scheme.lower() == "bearer"]


def _missing(authorization: Sequence[str], scope: str) -> str:
    if any(value.strip() for value in authorization) and not any(
        value.strip().lower() == "bearer" for value in authorization
    ):
        return f"The Authorization header holds no bearer key. {_FORM}; {_WHERE}."
    return _MISSING.get(scope, f"This server needs an API key. {_FORM}; {_WHERE}.")


def _identities(keys: Keys, override: str | None) -> tuple[Identity, ...]:
    main = override if override is not None else keys.main.key if keys.main else None
    named = [
        Identity(name=named.name, scopes=frozenset(named.scopes), digest=bytes.fromhex(named.sha256))
        for named in keys.named
    ]
    if main is None:
        return tuple(named)
    return (Identity(name=MAIN, scopes=frozenset(SCOPES), digest=_digest(main)), *named)


# Changing


def _fresh_key() -> str:
    return "sk-" + secrets.token_urlsafe(32)


def _with_main(keys: Keys) -> Keys:
    """Another process may have made one since we looked."""
    return keys if keys.main else _with_new_main(keys)


def _with_new_main(keys: Keys) -> Keys:
    return msgspec.structs.replace(keys, main=MainKey(key=_fresh_key(), created=int(time.time())))


def _with_named(keys: Keys, named: NamedKey) -> Keys:
    if any(other.name == named.name for other in keys.named):
        raise StartupError(f"There is a key named '{named.name}' already. Revoke it first, or take another name.")
    if len(keys.named) + 1 >= MOST_KEYS:
        raise StartupError(f"There are {MOST_KEYS - 1} named keys already. Revoke one that is not needed any more.")
    return msgspec.structs.replace(keys, named=(*keys.named, named))


def _without(keys: Keys, name: str) -> Keys:
    rest = tuple(named for named in keys.named if named.name != name)
    if len(rest) == len(keys.named):
        names = ", ".join([MAIN, *(named.name for named in keys.named)])
        raise StartupError(f"There is no key named '{name}'. There are: {names}.")
    return msgspec.structs.replace(keys, named=rest)


def _check_name(name: str) -> None:
    if name == MAIN:
        raise UsageError(f"The name '{MAIN}' is taken by the main key. Take another one.")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"A key cannot be named {name!r}. Use up to 32 letters, digits, dots, hyphens and underscores, "
            "with a letter or digit first."
        )


def _checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    wanted = set(scopes)
    unknown = sorted(wanted - set(SCOPES))
    if unknown or not wanted:
        raise UsageError(f"scope = {', '.join(unknown) or '(none)'} cannot be. Allowed: {', '.join(SCOPES)}.")
    return tuple(scope for scope in SCOPES if scope in wanted)


def _main_info(main: MainKey, uses: Mapping[str, int]) -> KeyInfo:
    return KeyInfo(name=MAIN, scopes=SCOPES, last4=main.key[-4:], created=main.created, last_used=uses.get(MAIN))


def _named_info(named: NamedKey, uses: Mapping[str, int]) -> KeyInfo:
    return KeyInfo(
        name=named.name,
        scopes=named.scopes,
        last4=named.last4,
        created=named.created,
        last_used=uses.get(named.name),
    )
