"""The links of a lab: a bridge in a namespace of its own, and each host on a port of it."""

from __future__ import annotations

from commrt.testing.lab.spaces import call

INTERFACE = "eth0"
MOST = 250


def address(i: int) -> str:
    """Return host i's address. It is the same in every lab: no lab sees another."""
    return f"10.77.0.{i + 1}"


def space(name: str, i: int) -> str:
    """Return the namespace of host i of the lab `name`."""
    return f"{name}-h{i}"


def build(name: str, hosts: int, rate: str | None) -> None:
    """Make the namespaces and links. Raises LabError, and then leaves what it has made so far."""
    switch = f"{name}-switch"
    call(["ip", "netns", "add", switch])
    _configure(switch, "link add br0 type bridge", "link set br0 up")
    for i in range(hosts):
        call(["ip", "netns", "add", space(name, i)])
        _connect(space(name, i), address(i), switch, f"port{i}")
        if rate is not None:
            _limit(space(name, i), INTERFACE, rate)
            _limit(switch, f"port{i}", rate)


def _connect(host: str, ip: str, switch: str, port: str) -> None:
    _configure(
        switch,
        f"link add {port} type veth peer name {INTERFACE} netns {host}",
        f"link set {port} master br0 up",
    )
    _configure(
        host,
        f"address add {ip}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        "link set lo up",
    )


def _limit(space: str, device: str, rate: str) -> None:
    """Limit what leaves through `device`; the burst holds two of the largest packets."""
    words = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "20ms"]
    call(["tc", "-n", space, "qdisc", "add", "dev", device, *words])


def _configure(space: str, *lines: str) -> None:
    call(["ip", "-n", space, "-batch", "-"], "\n".join(lines))
