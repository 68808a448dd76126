"""Addresses of the control plane over restarts: which are published, in which order, and what the log says."""

from __future__ import annotations

import asyncio
import logging
import secrets
import stat
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mooring.controlplane.addresses import (
    FILE,
    LOOK_SECONDS,
    MAX_KEPT,
    LostAddresses,
    given_before,
    published,
    with_published,
)
from mooring.controlplane.configuration import server_config
from mooring.controlplane.keystore import prepare
from mooring.errors import ConfigError
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.names import alternative_names
from mooring.settings.addresses import Endpoint
from mooring.trust.kubeconfig import KubeconfigUser, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support.manualclock import ManualClock

MADE = Path(__file__).parents[1] / "vectors/datadirectories/3d16da1.tar.xz"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWN, OTHER = "192.0.2.1", "192.0.2.2"


def start(
    root: Path,
    *given: str,
    address: str = OWN,
    withdraw: tuple[str, ...] = (),
    port: int = 6443,
    second: str = "",
    others: tuple[str, ...] = (),
    **flags: Any,
) -> tuple[str, ...]:
    """Start with these flags on a machine with this address. Return what is published.

    `second`: an address of the other family. `others`: addresses of interfaces without the default route.
    """
    detected = (address, second) if second else (address,)
    values: dict[str, Any] = {"data_dir": str(root), "secure_port": port or 40000, "withdraw_endpoint": withdraw}
    before = given_before(root, {*detected, "127.0.0.1", "::1"})
    config = server_config(
        **values, **flags, control_plane_endpoint=given, endpoints_before=before, detected_addresses=detected
    )
    local = {*detected, *others, "127.0.0.1"}
    config = with_published(config, root, port_is_chosen=not port, is_local=local.__contains__)
    prepare(config, NOW, secrets.token_bytes)
    return published(root)


def test_an_address_that_was_given_is_kept_although_it_is_of_this_machine(tmp_path: Path) -> None:
    assert start(tmp_path, f"{OWN}:7443") == (f"{OWN}:7443",)
    assert start(tmp_path, port=8443) == (f"{OWN}:7443",)
    assert start(tmp_path, address=OTHER) == (f"{OWN}:7443",)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_the_address_of_the_machine_is_followed_and_the_old_one_stays_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert start(tmp_path) == (f"{OWN}:6443",)
    assert caplog.text == ""
    assert start(tmp_path, address=OTHER) == (f"{OTHER}:6443", f"{OWN}:6443")
    assert caplog.messages == [
        f"the published address changes from {OWN}:6443 to {OTHER}:6443; {OWN}:6443 stays published behind it, until "
        f"--withdraw-endpoint {OWN}:6443 removes it"
    ]
    assert start(tmp_path, address=OTHER) == (f"{OTHER}:6443", f"{OWN}:6443"), "and is not taken for given"
    assert start(tmp_path, address=OTHER, withdraw=(f"{OWN}:6443",)) == (f"{OTHER}:6443",)
    assert caplog.messages[1:] == [f"{OWN}:6443 is withdrawn: it is published no more"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(("new.example:443",), ("new.example:443", "old.example:443"), id="another name"),
        pytest.param(("new.example:443", "old.example:443"), ("new.example:443", "old.example:443"), id="both"),
        pytest.param((), ("old.example:443",), id="no flag"),
    ],
)
def test_what_was_published_stays_until_it_is_withdrawn(
    tmp_path: Path, flags: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    start(tmp_path, "old.example:443")
    assert start(tmp_path, *flags) == expected
    remaining = tuple(one for one in expected if one != "old.example:443")
    if remaining:
        assert start(tmp_path, *remaining, withdraw=("old.example:443",)) == remaining
        assert start(tmp_path) == remaining


def test_an_address_that_is_left_out_beside_one_that_stays_is_removed_and_a_default_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path)
    assert start(tmp_path, "a.example:443", "b.example:443") == ("a.example:443", "b.example:443", f"{OWN}:6443")
    caplog.clear()
    assert start(tmp_path, "a.example:443") == ("a.example:443", f"{OWN}:6443")
    assert caplog.messages == ["b.example:443 was left out of control-plane-endpoint: it is published no more"]
    assert start(tmp_path) == ("a.example:443", f"{OWN}:6443")
    assert start(tmp_path, "c.example:443", "a.example:443")[:2] == ("c.example:443", "a.example:443")
    assert start(tmp_path, "c.example:443") == ("c.example:443", f"{OWN}:6443")
    assert start(tmp_path, "d.example:443") == ("d.example:443", "c.example:443", f"{OWN}:6443"), "machines have it"
    (tmp_path / FILE).unlink()
    kept = ("c.example:443", "d.example:443", f"{OWN}:6443")
    assert start(tmp_path, "c.example:443") == kept, "a directory of an earlier version removes nothing"


def test_an_address_of_this_start_cannot_be_withdrawn(tmp_path: Path) -> None:
    start(tmp_path, "old.example:443")
    with pytest.raises(ConfigError, match=r"old\.example:443 is an address of this start; give another"):
        start(tmp_path, withdraw=("old.example:443",))
    assert published(tmp_path) == ("old.example:443",)


def test_a_port_that_the_system_chose_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(tmp_path)
    assert start(tmp_path, port=0) == (f"{OWN}:40000",)
    assert f"{OWN}:6443 is published no more" in caplog.text


def test_a_machine_that_often_gets_another_address_collects_a_few(tmp_path: Path) -> None:
    for number in range(2, 20):
        found = start(tmp_path, address=f"192.0.2.{number}")
    assert len(found) == 1 + MAX_KEPT
    assert found[:2] == ("192.0.2.19:6443", "192.0.2.18:6443")


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        pytest.param(["https://lb.example:443"], ("lb.example:443",), id="a balancer's name was given"),
        pytest.param([f"https://{OWN}:6443"], (), id="the machine's own address was not"),
        pytest.param(
            [f"https://{OWN}:6443", f"https://{OTHER}:6443"], (f"{OWN}:6443", f"{OTHER}:6443"), id="several were given"
        ),
        pytest.param(["not a url"], (), id="nothing that cannot be read"),
        pytest.param([], (), id="no start before"),
    ],
)
def test_a_directory_of_an_earlier_version(tmp_path: Path, servers: list[str], expected: tuple[str, ...]) -> None:
    if servers:
        first, *others = servers
        config = user_kubeconfig(first, b"", KubeconfigUser("admin"), others=others)
        (tmp_path / "admin.conf").write_text(format_kubeconfig(config))
    assert given_before(tmp_path, {OWN}) == expected


def test_a_withdrawal_is_reported_and_one_of_an_address_that_is_not_published_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path)
    start(tmp_path, "new.example:443")
    caplog.clear()
    start(tmp_path, withdraw=("old.exmaple:443",))
    assert "withdraw-endpoint: old.exmaple:443 is not published; leave the flag out" in caplog.text
    assert start(tmp_path, withdraw=(f"{OWN}:6443",)) == ("new.example:443",)
    assert f"{OWN}:6443 is withdrawn: it is published no more" in caplog.text


SIX = "2001:db8::1"


def test_both_families_are_published_and_what_was_first_stays_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = (f"{OWN}:6443", f"[{SIX}]:6443")
    assert start(tmp_path / "new", second=SIX) == both
    assert start(tmp_path / "new", second=SIX) == both
    assert start(tmp_path / "four", address=OWN) == both[:1]
    assert start(tmp_path / "four", second=SIX) == both
    assert start(tmp_path / "six", address=SIX) == both[1:]
    assert start(tmp_path / "six", second=SIX) == both[::-1], "an update does not reorder"
    assert caplog.messages == []
    certificate = (tmp_path / "new/pki/apiserver.crt").read_bytes()
    names = alternative_names(certificates(certificate)[0].extensions)
    assert {OWN, SIX} <= set(map(str, names.ips))


@pytest.mark.parametrize(
    ("first", "flags", "expected"),
    [
        pytest.param(
            OTHER, {"others": (OTHER,)}, (OTHER, OWN), id="stays first on an interface without the default route"
        ),
        pytest.param(OTHER, {}, (OWN, OTHER), id="is followed when it is not of this machine any more"),
        pytest.param(OTHER, {"others": (OTHER,), "bind_address": OWN}, (OWN, OTHER), id="one address is listened on"),
        pytest.param(
            OTHER, {"others": (OTHER,), "advertise_address": OWN}, (OWN, OTHER), id="another one is advertised"
        ),
        pytest.param("127.0.0.1", {}, (OWN, "127.0.0.1"), id="loopback from a start without a network"),
    ],
)
def test_the_first_address_stays_first_while_it_is_of_this_machine(
    tmp_path: Path, first: str, flags: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert start(tmp_path, address=first) == (f"{first}:6443",)
    assert start(tmp_path, **flags) == tuple(f"{one}:6443" for one in expected)


V6 = "2001:db8::1"


@pytest.mark.parametrize("now", [V6, "127.0.0.1"], ids=["only the other family", "no family"])
def test_the_first_address_stays_first_while_the_machine_has_none_of_its_family(
    tmp_path: Path, now: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A start before the DHCP server has responded must not move what kubeadm and kubelets use."""
    assert start(tmp_path, second=V6)[0] == f"{OWN}:6443"
    assert start(tmp_path, address=now)[0] == f"{OWN}:6443"
    assert caplog.messages == [
        f"this machine has no address of the family of {OWN}:6443 now, which stays the published address, until "
        f"--withdraw-endpoint {OWN}:6443 removes it"
    ]
    assert start(tmp_path, second=V6)[:2] == (f"{OWN}:6443", f"[{V6}]:6443")
    assert start(tmp_path, address=V6, withdraw=(f"{OWN}:6443",))[0] == f"[{V6}]:6443"


def test_the_first_address_gives_way_when_it_is_withdrawn_or_has_another_port(tmp_path: Path) -> None:
    start(tmp_path, address=OTHER)
    assert start(tmp_path, others=(OTHER,), port=7443)[0] == f"{OWN}:7443"
    start(tmp_path / "2", address=OTHER)
    assert start(tmp_path / "2", others=(OTHER,), withdraw=(f"{OTHER}:6443",)) == (f"{OWN}:6443",)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        pytest.param(OWN, (f"{OWN}:26443", f"[{SIX}]:26443"), id="IPv4"),
        pytest.param(SIX, (f"[{SIX}]:26443", f"{OWN}:26443"), id="IPv6"),
        pytest.param(OTHER, (f"{OTHER}:26443",), id="one that counts as given"),
        pytest.param("cp.example", ("cp.example:26443",), id="a given name"),
    ],
)
def test_an_update_of_a_directory_of_commit_3d16da1_reorders_nothing(
    tmp_path: Path, then: str, now: tuple[str, ...]
) -> None:
    with tarfile.open(MADE) as archive:
        archive.extract("data/admin.conf", tmp_path, filter="data")
    root = tmp_path / "data"
    config = (root / "admin.conf").read_text()
    (root / "admin.conf").write_text(config.replace("127.0.0.1:26443", str(Endpoint(then, 26443))))
    own = (OWN, SIX)
    made = server_config(
        data_dir=str(root),
        secure_port=26443,
        detected_addresses=own,
        endpoints_before=given_before(root, {*own, "127.0.0.1", "::1"}),
    )
    made = with_published(made, root, port_is_chosen=False, is_local={*own, OTHER}.__contains__)
    assert tuple(map(str, made.endpoints)) == now


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_a_wildcard_that_an_earlier_version_published_is_dropped(tmp_path: Path, address: str) -> None:
    start(tmp_path, "a.example:443", "b.example:443")
    published_then = str(Endpoint(address, 6443))
    (tmp_path / FILE).write_text(f"{published_then}\na.example:443\n")
    text = (tmp_path / "admin.conf").read_text()
    (tmp_path / "admin.conf").write_text(text.replace("https://b.example:443", f"https://{published_then}"))
    assert start(tmp_path) == ("a.example:443",)
    (tmp_path / FILE).write_text(f"{published_then}\n")
    assert start(tmp_path) == (f"{OWN}:6443", "a.example:443")


@pytest.mark.parametrize(
    ("settings", "watched", "advice"),
    [
        ({}, (OWN,), "Restart the server:"),
        ({"control_plane_endpoint": (OWN,)}, (OWN,), "Restart the server with another --control-plane-endpoint:"),
        ({"control_plane_endpoint": ("api.example.com",)}, (OWN,), "with another --control-plane-endpoint:"),
        ({"control_plane_endpoint": ("203.0.113.1",), "advertise_address": "203.0.113.1"}, (), ""),
    ],
    ids=["detected", "given", "a name, and the address of the Service", "those of a load balancer"],
)
def test_a_running_server_says_that_its_machine_lost_a_published_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], watched: tuple[str, ...], advice: str
) -> None:
    local, clock = {OWN}, ManualClock()
    lost = LostAddresses(
        server_config(data_dir=str(tmp_path), detected_addresses=(OWN,), **settings),
        is_local=lambda host: host in local,
    )

    async def scenario() -> None:
        task = asyncio.ensure_future(lost.run(clock, lambda: sorted(local)))
        for now in ({OWN}, {OTHER}, {OTHER}, {OWN}):
            local.clear()
            local.update(now)
            await clock.advance(LOOK_SECONDS)
            assert lost.find() == [host for host in watched if host not in now]
        task.cancel()

    with caplog.at_level(logging.INFO, "mooring.controlplane"):
        asyncio.run(scenario())
    if not watched:
        assert caplog.messages == []
        return
    gone, back = caplog.messages
    assert gone.startswith(
        f"this machine does not have {OWN} any more, which this server publishes; it has {OTHER} now. "
    )
    assert advice in gone
    assert back == f"this machine has {OWN} again"
