"""Errors of an address on which a server cannot listen: each says what to do about it."""

from __future__ import annotations

import errno

import pytest

from mooring.plane.configuration import server_config
from mooring.plane.workers.listening import cannot_listen
from mooring.settings.network import NetworkSettings


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EADDRINUSE, "stop what uses the port or choose another with --secure-port"),
        (errno.EADDRNOTAVAIL, "give an address of this machine with --bind-address"),
        (errno.EACCES, "a port below 1024 needs the capability CAP_NET_BIND_SERVICE"),
        (errno.EAFNOSUPPORT, "check --bind-address and --secure-port"),
    ],
    ids=errno.errorcode.get,
)
def test_the_remedy_is_that_of_the_reason(number: int, remedy: str) -> None:
    network = server_config(data_dir="/d")[NetworkSettings]
    assert remedy in str(cannot_listen(network, OSError(number, "repeats the address")))
