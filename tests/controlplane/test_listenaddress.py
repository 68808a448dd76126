"""Published addresses against the one that is listened on, and errors of an address that cannot be listened on."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from mooring.controlplane.addresses import cannot_listen, check_published
from mooring.controlplane.configuration import server_config
from mooring.errors import ConfigError
from mooring.listensockets import ListenError, close_all, listen
from mooring.settings.addresses import parse_endpoint
from tests.support.ports import free_port


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
    error = str(cannot_listen(ListenError(number, "fd00::2", 6443)))
    assert error.startswith("cannot listen on [fd00::2]:6443: ")
    assert error.endswith(remedy) or remedy in error


@pytest.fixture
def port() -> int:
    return free_port()


OTHER = "203.0.113.9"
"""An address that no machine has (RFC 5737)."""


def check(port: int, **flags: Any) -> None:
    config = server_config(**{"data_dir": "/d", "secure_port": port, "bind_address": "127.0.0.1", **flags})
    check_published(config, lambda address: address.startswith(("127.", "::1")))


@pytest.mark.parametrize("bound", ["127.0.0.1", "127.0.0.3"])
@pytest.mark.parametrize(
    ("given", "host"),
    [
        (["127.0.0.2"], "127.0.0.2"),
        (["127.0.0.2:{port}"], "127.0.0.2"),
        (["a.example", "[::1]"], "::1"),
        (["127.0.0.1:1", OTHER, "::ffff:127.0.0.2"], "::ffff:127.0.0.2"),
    ],
    ids=str,
)
def test_a_given_address_of_this_machine_at_which_nothing_listens_is_an_error(
    given: list[str], host: str, bound: str, port: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(port, control_plane_endpoint=[text.format(port=port) for text in given], bind_address=bound)
    assert str(caught.value) == (
        f"control-plane-endpoint: {parse_endpoint(host, 'x', port)} is of this machine, and nothing listens there: bind-address is "
        f"{bound}; listen there too (bind-address 0.0.0.0 means every address), or start the program that forwards it to "
        f"{bound}:{port} first"
    )


def test_one_address_that_works_does_not_excuse_another_that_others_would_use(port: int) -> None:
    config = server_config(
        data_dir="/d", secure_port=port, bind_address="127.0.0.1", control_plane_endpoint=["127.0.0.1", OTHER]
    )
    with pytest.raises(ConfigError, match=f"^control-plane-endpoint: {OTHER}:{port} is of this machine"):
        check_published(config, lambda address: True)


def test_an_advertised_address_is_compared_as_well(port: int) -> None:
    config = server_config(data_dir="/d", secure_port=port, bind_address="127.0.0.1", advertise_address=OTHER)
    with pytest.raises(ConfigError, match=f"^advertise-address: {OTHER}:{port} is of this machine"):
        check_published(config, lambda address: address == OTHER)
    config = server_config(
        data_dir="/d", secure_port=port, bind_address="127.0.0.1", advertise_address=OTHER, control_plane_endpoint=["a"]
    )
    with pytest.raises(ConfigError, match=f"^advertise-address: {OTHER}:{port} is of this machine"):
        check_published(config, lambda address: address == OTHER)


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        pytest.param(
            {"endpoints_before": ["127.0.0.2"]},
            "127.0.0.2:{port} is published since an earlier start, and nothing listens there: bind-address is 127.0.0.1; listen "
            "there too (bind-address 0.0.0.0 means every address), or start the program that forwards it to 127.0.0.1:{port}, or "
            "withdraw it with --withdraw-endpoint 127.0.0.2:{port}",
            id="a kept one that nothing answers",
        ),
        pytest.param(
            {"control_plane_endpoint": ["fd00::9"]},
            "[fd00::9]:{port} is published, and this server listens on 127.0.0.1:{port} only, of the other family: clients reach "
            "the published address only where a program forwards it",
            id="a family that is not listened on",
        ),
        pytest.param(
            {"control_plane_endpoint": [OTHER], "bind_address": "::1"},
            OTHER + ":{port} is published, and this server listens on [::1]:{port} only, of the other family: clients reach "
            "the published address only where a program forwards it",
            id="IPv4 of a server with IPv6",
        ),
        pytest.param({"control_plane_endpoint": [OTHER]}, "", id="an address of another machine"),
        pytest.param(
            {"control_plane_endpoint": ["127.0.0.1", "127.0.0.2"]},
            "127.0.0.2:{port} is published, and nothing listens there yet: bind-address is 127.0.0.1; start the server, or the "
            "program that forwards it to 127.0.0.1:{port}",
            id="another server of a trial on loopback",
        ),
        pytest.param({"control_plane_endpoint": ["api.example.com", "127.0.0.2:1"]}, "", id="a name, and another port"),
        pytest.param({}, "", id="the address that is listened on"),
        pytest.param({"control_plane_endpoint": ["::ffff:127.0.0.1"]}, "", id="the same, IPv4-mapped"),
        *(
            pytest.param({"control_plane_endpoint": ["127.0.0.2", "::1", OTHER, "fd00::9"], "bind_address": every}, "",
                         id=f"everything at {every or 'the empty text'}")
            for every in ("0.0.0.0", "::", "", "::ffff:0.0.0.0")
        ),
    ],
)  # fmt: skip
def test_what_may_work_is_warned_of_or_not_at_all(
    flags: dict[str, Any], warning: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    check(port, **flags)
    assert caplog.messages == [warning.format(port=port)] * bool(warning)


def test_a_program_that_listens_on_the_published_address_may_forward(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    forwarding = listen("127.0.0.2", port)
    try:
        check(port, control_plane_endpoint=["127.0.0.2"])
    finally:
        close_all(forwarding)
    assert caplog.messages == [
        f"127.0.0.2:{port} is published, and this server listens on 127.0.0.1:{port} only: the program that listens on the "
        "published address must forward to it"
    ]
