"""Which address of rank 0's host all other hosts can reach."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence

_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B


_INET6 = "/proc/net/if_inet6"
_GLOBAL = 0x00
_LOOPBACK = 0x10
_UNUSABLE = 0x68  # tentative, deprecated, or somebody else's


def own_addresses() -> tuple[str, ...]:
    """Return the addresses of this host with their prefix, as in `10.0.0.3/24`.

    Those of IPv4 come first. Addresses of IPv6 that are good on one link only are left out.
    """
    return (*_of_ipv4(), *_of_ipv6())


def _of_ipv4() -> tuple[str, ...]:
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


def _of_ipv6(path: str = _INET6) -> tuple[str, ...]:
    try:
        with open(path) as file:
            rows = [line.split() for line in file]
    except OSError:  # no IPv6
        return ()
    return tuple(
        f"{ipaddress.IPv6Address(int(address, 16))}/{int(prefix, 16)}"
        for address, _, prefix, scope, flags, _ in rows
        if int(scope, 16) in (_GLOBAL, _LOOPBACK) and not int(flags, 16) & _UNUSABLE
    )


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
