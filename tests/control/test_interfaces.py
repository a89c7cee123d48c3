from __future__ import annotations

import ipaddress

import pytest

from commrt.control.interfaces import common_address, own_addresses


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
