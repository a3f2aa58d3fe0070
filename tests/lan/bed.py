"""A local network made of network namespaces: machines on a bridge, each with its own interfaces, nothing outside.

Names are unique to the process, and everything is removed when the bed is left. `LanBed.why_not()` tells what is
missing; tests skip with that sentence, and fail with it where `CI` is set.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

TOOLS = ("ip", "avahi-daemon", "avahi-browse", "dbus-daemon")
_numbers = itertools.count()
Value = TypeVar("Value")

AVAHI_CONFIGURATION = """
[server]
host-name={host_name}
use-ipv4=yes
use-ipv6=no
allow-interfaces={interfaces}
disallow-other-stacks={exclusive}
enable-dbus=yes
ratelimit-interval-usec=1000000
ratelimit-burst=1000
[publish]
publish-workstation=no
publish-hinfo=no
"""

DBUS_CONFIGURATION = """
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <policy context="default">
    <allow own="*"/><allow user="*"/><allow send_destination="*"/><allow receive_sender="*"/>
    <allow send_type="method_call"/><allow eavesdrop="false"/>
  </policy>
</busconfig>
"""


@dataclass(slots=True)
class Machine:
    """One namespace with its interfaces; `address` is its IPv4 address on the bed's bridge."""

    namespace: str
    address: str
    interface: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def argv(self, argv: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *argv]


@dataclass(frozen=True, slots=True)
class Resolved:
    """One line of `avahi-browse -rp` with its escapes undone."""

    interface: str
    name: str
    type: str
    host: str
    address: str
    port: int
    text: str


class LanBed:
    """`with LanBed(folder) as bed`: a bridge; `bed.machine(...)` puts another machine on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shared_folder = folder / "shared"
        self._prefix = f"ps{os.getpid() % 100000}x{next(_numbers)}"
        self._bridge = f"{self._prefix}b"
        self._hub = f"{self._prefix}hub"
        self._stack = contextlib.ExitStack()
        self._links = itertools.count()

    @staticmethod
    def why_not() -> str | None:
        """What is missing for a bed on this machine, or None."""
        for tool in TOOLS:
            if shutil.which(tool) is None:
                return f"the program {tool} is not installed"
        name = f"ps{os.getpid() % 100000}probe"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        if made.returncode:
            return f"network namespaces are not permitted: {made.stderr.strip()}"
        subprocess.run(["ip", "netns", "delete", name], check=True)
        return None

    def __enter__(self) -> Self:
        self._add_namespace(self._hub)
        self._in_hub("link", "add", self._bridge, "type", "bridge", "mcast_snooping", "0")
        self._in_hub("link", "set", self._bridge, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def machine(self, address: str, *, name: str = "", interface: str = "wlan0", default_route: bool = True) -> Machine:
        """A machine on the bridge with this address (with its prefix: `10.77.0.1/24`)."""
        namespace = f"{self._prefix}{name or 'm'}{next(self._links)}"
        self._add_namespace(namespace)
        folder = self._folder / namespace
        folder.mkdir(parents=True)
        machine = Machine(namespace, address.partition("/")[0], interface, folder)
        self.ip(machine, "link", "set", "lo", "up")
        self.attach(machine, interface, address)
        if default_route:
            self.ip(machine, "route", "add", "default", "dev", interface)
        return machine

    def attach(self, machine: Machine, interface: str, address: str) -> None:
        """Another cable from this machine to the bridge."""
        port = f"{self._prefix}p{next(self._links)}"
        self._in_hub("link", "add", port, "type", "veth", "peer", "name", interface, "netns", machine.namespace)
        self._in_hub("link", "set", port, "master", self._bridge, "up")
        self.ip(machine, "address", "add", address, "dev", interface)
        self.ip(machine, "link", "set", interface, "up")

    def decoy(self, machine: Machine, interface: str, address: str) -> None:
        """An interface that leads nowhere, as container engines and VPNs make them."""
        peer = f"veth{next(self._links)}"
        self.ip(machine, "link", "add", interface, "type", "veth", "peer", "name", peer)
        self.ip(machine, "address", "add", address, "dev", interface)
        for end in (interface, peer):
            self.ip(machine, "link", "set", end, "up")

    def ip(self, machine: Machine, *words: str) -> None:
        _run(["ip", "-n", machine.namespace, *words])

    def run_in(
        self, machine: Machine, argv: Sequence[str], *, timeout_seconds: float = 20.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end inside a machine; its output is text."""
        return subprocess.run(
            machine.argv(argv),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
            env={**os.environ, **machine.environment},
        )

    def start_in(self, machine: Machine, argv: Sequence[str], *, name: str = "program") -> subprocess.Popen[str]:
        """Start a program inside a machine. It is ended with the bed; its output is in `<folder>/<name>.log`."""
        with (machine.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                machine.argv(argv),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **machine.environment},
            )
        self._stack.callback(stop, process)
        return process

    def start_avahi(self, machine: Machine, *, host_name: str = "client", exclusive: bool = False) -> None:
        """A system bus and an avahi-daemon inside a machine, so that `browse` works there."""
        socket = machine.folder / "bus"
        bus = machine.folder / "dbus.conf"
        bus.write_text(DBUS_CONFIGURATION.format(socket=socket))
        machine.environment["DBUS_SYSTEM_BUS_ADDRESS"] = f"unix:path={socket}"
        self.start_in(machine, ["dbus-daemon", f"--config-file={bus}", "--nofork", "--nopidfile"], name="dbus")
        until(socket.exists, "the bus to listen")
        configuration = machine.folder / "avahi.conf"
        configuration.write_text(
            AVAHI_CONFIGURATION.format(
                host_name=host_name, interfaces=machine.interface, exclusive="yes" if exclusive else "no"
            )
        )
        self._start_avahi_daemon(machine, configuration)

    def _start_avahi_daemon(self, machine: Machine, configuration: Path) -> None:
        """Its pid file and socket have fixed paths, hence a private /run for each daemon (a mount namespace)."""
        script = (
            "mount -t tmpfs none /run && mkdir -p /run/avahi-daemon && "
            'exec avahi-daemon -f "$0" --no-drop-root --no-chroot --no-rlimits'
        )
        self.start_in(machine, ["unshare", "--mount", "sh", "-c", script, str(configuration)], name="avahi")
        until(lambda: "Server startup complete" in (machine.folder / "avahi.log").read_text(), "avahi to start")

    def browse(self, machine: Machine, kind: str | None = "_pocketllm._tcp") -> list[Resolved]:
        """What avahi knows of a service type at this moment; None: what it finds out about all types."""
        answer = self.run_in(machine, ["avahi-browse", *(["-arpt"] if kind is None else ["-rpc", kind])])
        lines = [line.split(";", 9) for line in answer.stdout.splitlines() if line.startswith("=")]
        return [
            Resolved(interface, unescape(name), kind_seen, host, address, int(port), text)
            for _, interface, _, name, kind_seen, _, host, address, port, text in lines
        ]

    def _add_namespace(self, namespace: str) -> None:
        _run(["ip", "netns", "add", namespace])
        self._stack.callback(_run, ["ip", "netns", "delete", namespace])

    def _in_hub(self, *words: str) -> None:
        _run(["ip", "-n", self._hub, *words])


def unescape(text: str) -> str:
    r"""Undo avahi's escapes: `\032` is the byte with that decimal number, `\.` is a dot."""
    out = bytearray()
    rest = text.encode()
    while rest:
        if rest[:1] == b"\\" and rest[1:4].isdigit():
            out.append(int(rest[1:4]))
            rest = rest[4:]
        elif rest[:1] == b"\\":
            out += rest[1:2]
            rest = rest[2:]
        else:
            out += rest[:1]
            rest = rest[1:]
    return out.decode("utf-8", "replace")


def until(
    condition: Callable[[], Value], what: str, *, timeout_seconds: float = 15.0, every_seconds: float = 0.1
) -> Value:
    """Poll until the condition is true and return its value; fail with what was waited for."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every_seconds)
    raise AssertionError(f"waited {timeout_seconds:.0f} s in vain for {what}")


def stop(process: subprocess.Popen[str], number: int = signal.SIGTERM, *, timeout_seconds: float = 10.0) -> None:
    """Send a signal to a program that we started and wait for its end; kill it when it does not end."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
