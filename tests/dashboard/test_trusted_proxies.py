"""Which peers are the operator's own proxies."""

from __future__ import annotations

import pytest

from guard.gateway.dashboard.security import ClientAddresses


@pytest.mark.parametrize(
    ("trusted", "peer", "is_trusted"),
    [
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "::ffff:11.1.2.3", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:10.0.0.0/104", "10.1.2.3", True),
        ("::1", "::1", True),
        ("::1", "127.0.0.1", False),
        ("127.0.0.1", "no address", False),
    ],
)
def test_a_mapped_address_is_that_of_ipv4(trusted: str, peer: str, is_trusted: bool) -> None:
    assert ClientAddresses([trusted])._is_trusted(peer) is is_trusted
