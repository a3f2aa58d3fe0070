"""A neighbour that announces what no neighbour should, in packets made by hand. Repeats until it is ended."""

import socket
import struct
import sys
import time

GROUP = ("224.0.0.251", 5353)
PTR, TXT, A, SRV = 12, 16, 1, 33
CACHE_FLUSH = 0x8001
KIND = [b"_pocketllm", b"_tcp", b"local"]
EVIL = b"evil\r\n\x1b[31mred\x9b\xff\x00name"
LOUD = b"loud \xe2\x80\xae name"
HOST = [b"ev\x1b[2Jil", b"local"]


def main(address: str) -> None:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
    sender.bind((address, 5353))
    while True:
        for packet in packets(address):
            sender.sendto(packet, GROUP)
        print("sent", flush=True)
        time.sleep(0.3)


def packets(address: str) -> list[bytes]:
    texts = text(
        [b"path=javascript:alert(1)", b"no-equals-sign", b"=empty", b"model=\x1b]0;title\x07", b"\xff\xfe=\xff"]
    )
    huge = text([b"k%d=" % number + b"v" * 250 for number in range(33)])
    return [
        service(EVIL, address, texts),
        service(LOUD, address, huge),
        service(b"liar", "8.8.8.8", texts),
        service(b"twelve", address, b"\xff" * 12),
        answer(record(KIND, PTR, b"\xc0\xff")),
        answer(record(KIND, PTR, b"\x3fshort")),
        answer(record(KIND, TXT, text([b"x" * 255] * 230))),  # 59 KB, in fragments
        b"\x00\x00\x84\x00\x00\x00\xff\xff\x00\x00\x00\x00",
    ]


def service(label: bytes, address: str, txt: bytes) -> bytes:
    instance = [label, *KIND]
    return answer(
        record(KIND, PTR, name(instance), flush=False),
        record(instance, SRV, struct.pack("!HHH", 0, 0, 9) + name(HOST)),
        record(instance, TXT, txt),
        record(HOST, A, socket.inet_aton(address)),
    )


def answer(*records: bytes) -> bytes:
    return struct.pack("!HHHHHH", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records)


def record(owner: list[bytes], kind: int, data: bytes, *, flush: bool = True) -> bytes:
    return name(owner) + struct.pack("!HHIH", kind, CACHE_FLUSH if flush else 1, 120, len(data)) + data


def name(labels: list[bytes]) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\x00"


def text(strings: list[bytes]) -> bytes:
    return b"".join(bytes([len(string)]) + string for string in strings)


if __name__ == "__main__":
    main(sys.argv[1])
