"""Listening sockets: one port on both families, and a taken port is a sentence."""

import socket

import pytest

from pocketserver.errors import StartupError
from pocketserver.listening import is_loopback, listen


def test_everywhere_is_one_port_on_both_families() -> None:
    sockets = listen("0.0.0.0", 0)
    try:
        assert len({listener.getsockname()[1] for listener in sockets}) == 1
        assert sockets[0].family == socket.AF_INET
        assert {listener.family for listener in sockets} <= {socket.AF_INET, socket.AF_INET6}
    finally:
        for listener in sockets:
            listener.close()


def test_a_taken_port_says_what_to_do() -> None:
    [first] = listen("127.0.0.1", 0)
    try:
        with pytest.raises(StartupError, match="--port 0"):
            listen("127.0.0.1", first.getsockname()[1])
    finally:
        first.close()


def test_an_address_that_is_not_ours_is_explained() -> None:
    with pytest.raises(StartupError, match="--host"):
        listen("192.0.2.77", 0)


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("localhost", True)]
)
def test_loopback_is_recognised(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
