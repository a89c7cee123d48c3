"""Which address of rank 0's host all other hosts can reach."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence

_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B


def own_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of this host with their prefix, as in `10.0.0.3/24`."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]
                mask = fcntl.ioctl(sock, _SIOCGIFNETMASK, request)[20:24]
            except OSError:  # no IPv4 address
                continue
            found.append(f"{socket.inet_ntoa(address)}/{socket.inet_ntoa(mask)}")
    return tuple(str(ipaddress.ip_interface(a)) for a in found)


def common_address(own: Sequence[str], others: Sequence[Sequence[str]]) -> str | None:
    """Return the first of our addresses whose subnet holds an address of every other host.

    Loopback never counts: it is another host's own. None if there is none.
    """
    for text in own:
        interface = ipaddress.ip_interface(text)
        if interface.is_loopback:
            continue
        if all(any(_holds(interface, a) and a != text for a in other) for other in others):
            return str(interface.ip)
    return None


def _holds(interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface, address: str) -> bool:
    return ipaddress.ip_interface(address).ip in interface.network
