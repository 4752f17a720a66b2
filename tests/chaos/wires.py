"""Hosts on one machine, as network namespaces, and the networks between them: a bridge, or wires of our own.

Latency and loss are netem's where the kernel has it. Where it has not, every host gets a network device (TUN) whose
packets pass this process, which hands each of them on later, or not at all: to TCP that is the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
BRIDGE = "byol-bridge"


class Network(Protocol):
    kind: str

    def cut(self, host: str) -> None: ...

    def mend(self, host: str) -> None: ...


def ip(*words: str, host: str = "") -> str:
    inside = ["ip", "netns", "exec", f"byol-{host}"] if host else []
    return subprocess.run([*inside, "ip", *words], check=True, capture_output=True, text=True).stdout


def address(number: int) -> str:
    """Of the host with this number, from 0."""
    return f"10.77.0.{number + 1}"


@contextlib.contextmanager
def network(hosts: Sequence[str], latency: float = 0.0, loss: float = 0.0) -> Iterator[Network]:
    """Hosts that reach each other, each way `latency` seconds late and without this share of the packets."""
    remove(hosts)
    try:
        for host in hosts:
            ip("netns", "add", f"byol-{host}")
            ip("link", "set", "lo", "up", host=host)
        bridge = Bridge(hosts)
        if not (latency or loss) or bridge.shape(latency, loss):
            yield bridge
        else:
            bridge.close()
            with Wires(hosts, latency, loss) as wires:
                yield wires
    finally:
        remove(hosts)


def remove(hosts: Sequence[str]) -> None:
    """What an earlier test may have left behind, too."""
    for host in hosts:
        subprocess.run(["ip", "netns", "del", f"byol-{host}"], capture_output=True)
        subprocess.run(["ip", "link", "del", f"byol-{host}"], capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


class Bridge:
    """Pairs of the kernel's virtual cables, all on one bridge; a host that is cut off sees its cable go dead."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts, self.kind = hosts, "bridge"
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for number, host in enumerate(hosts):
            ip("link", "add", f"byol-{host}", "type", "veth", "peer", "name", "eth0", "netns", f"byol-{host}")
            ip("link", "set", f"byol-{host}", "master", BRIDGE)
            ip("link", "set", f"byol-{host}", "up")
            ip("addr", "add", f"{address(number)}/24", "dev", "eth0", host=host)
            ip("link", "set", "eth0", "up", host=host)

    def shape(self, latency: float, loss: float) -> bool:
        """By netem; whether the kernel has it."""
        for host in self.hosts:
            how = ["delay", f"{1000 * latency}ms", "loss", f"{100 * loss}%"]
            command = ["tc", "qdisc", "add", "dev", f"byol-{host}", "root", "netem", *how]
            if subprocess.run(command, capture_output=True).returncode:
                return False
        self.kind = "bridge with netem"
        return True

    def close(self) -> None:
        for host in self.hosts:
            ip("link", "del", f"byol-{host}")
        ip("link", "del", BRIDGE)

    def cut(self, host: str) -> None:
        ip("link", "set", f"byol-{host}", "down")

    def mend(self, host: str) -> None:
        ip("link", "set", f"byol-{host}", "up")


class Wires:
    """A switch in this process; packets to and from a host that is cut off vanish, and its device shows nothing."""

    def __init__(self, hosts: Sequence[str], latency: float, loss: float) -> None:
        self.latency, self.loss, self.kind = latency, loss, "wires of this process"
        self.chance, self.off, self.over = random.Random(0), set[int](), threading.Event()
        self.hosts, self.ends = list(hosts), [self._end(number, host) for number, host in enumerate(hosts)]
        self.passed, self.lost = 0, 0
        self.thread = threading.Thread(target=self._carry, daemon=True)

    def _end(self, number: int, host: str) -> int:
        """A device inside a host, as a file of this process, which stays one when the device moves there."""
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", f"byol-{host}".encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", f"byol-{host}", "netns", f"byol-{host}")
        ip("link", "set", f"byol-{host}", "name", "eth0", host=host)
        ip("addr", "add", f"{address(number)}/24", "dev", "eth0", host=host)
        ip("link", "set", "eth0", "up", host=host)
        return end

    def __enter__(self) -> Wires:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(5)
        for end in self.ends:
            os.close(end)

    def cut(self, host: str) -> None:
        self.off.add(self.hosts.index(host))

    def mend(self, host: str) -> None:
        self.off.discard(self.hosts.index(host))

    def _carry(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []  # when, a number that keeps their order, to whom, what
        while not self.over.is_set():
            now = time.monotonic()
            while under_way and under_way[0][0] <= now:
                _, _, to, packet = heapq.heappop(under_way)
                with contextlib.suppress(OSError):  # a host that is going away, or whose queue is full
                    os.write(self.ends[to], packet)
            patience = max(0.0, under_way[0][0] - time.monotonic()) if under_way else 0.1
            for end in select.select(self.ends, [], [], patience)[0]:
                for packet in _packets(end):
                    self.passed += 1
                    to, source = packet[19] - 1, self.ends.index(end)
                    known = packet[0] >> 4 == 4 and 0 <= to < len(self.ends) and not self.off & {to, source}
                    if known and self.chance.random() >= self.loss:
                        heapq.heappush(under_way, (time.monotonic() + self.latency, self.passed, to, packet))
                    else:
                        self.lost += 1


def _packets(end: int) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError, OSError):
        while True:
            yield os.read(end, 65536)
