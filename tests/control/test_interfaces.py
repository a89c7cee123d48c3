from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from commrt.control.interfaces import _of_ipv6, common_address, own_addresses


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (["10.0.0.1/24"], [["10.0.0.2/24"]], "10.0.0.1"),
        (["10.0.0.1/24"], [["10.0.1.2/24"]], None),
        (["127.0.0.1/8"], [["127.0.0.1/8"]], None),
        (["127.0.0.1/8", "10.0.0.1/24"], [["127.0.0.1/8", "10.0.0.9/24"]], "10.0.0.1"),
        (
            ["192.168.0.1/24", "10.0.0.1/24"],
            [["10.0.0.2/24"], ["10.0.0.3/24", "192.168.0.3/24"]],
            "10.0.0.1",
        ),
        (["192.168.0.1/24", "10.0.0.1/24"], [["192.168.0.2/24", "10.0.0.2/24"]], "192.168.0.1"),
        # The bridge of a container engine has the same address on every host: it leads nowhere.
        (["172.17.0.1/16", "10.0.0.1/24"], [["172.17.0.1/16", "10.0.0.2/24"]], "10.0.0.1"),
        (["172.17.0.1/16"], [["172.17.0.1/16"]], None),
        (["10.0.0.1/24"], [[]], None),
        ([], [["10.0.0.2/24"]], None),
        (["10.0.0.1/24"], [], "10.0.0.1"),
        (["fd00::1/64"], [["fd00::2/64"]], "fd00::1"),
        (["fd00::1/64", "10.0.0.1/24"], [["10.0.0.2/24"]], "10.0.0.1"),
    ],
)
def test_the_common_address_is_the_first_whose_subnet_reaches_all(
    own: list[str], others: list[list[str]], expected: str | None
) -> None:
    assert common_address(own, others) == expected


def test_this_host_s_addresses_have_their_prefix() -> None:
    found = own_addresses()
    assert all("/" in text for text in found)
    assert len({ipaddress.ip_interface(text) for text in found}) == len(found)


def test_addresses_of_ipv6_are_those_that_other_hosts_can_use(tmp_path: Path) -> None:
    listed = tmp_path / "if_inet6"
    listed.write_text(
        "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fd000000000000000000000000000002 04 40 00 82     eth0\n"
        "fd000000000000000000000000000003 04 40 00 c0     eth0\n"
        "fd000000000000000000000000000004 04 40 00 a0     eth0\n"
    )
    assert _of_ipv6(str(listed)) == ("::1/128", "fd00::2/64")
    assert _of_ipv6(str(tmp_path / "none")) == ()
