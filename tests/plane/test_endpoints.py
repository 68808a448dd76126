"""Addresses of the control plane over restarts: which are published, in which order, and what the log says."""

from __future__ import annotations

import secrets
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.plane.configuration import server_config
from mooring.plane.endpoints import FILE, MAX_KEPT, given_before, published, with_published
from mooring.plane.keys.keystore import prepare
from mooring.trust.kubeconfig.model import KubeconfigUser, user_kubeconfig
from mooring.trust.kubeconfig.text import format_kubeconfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWN, OTHER = "192.0.2.1", "192.0.2.2"


def start(
    root: Path, *given: str, address: str = OWN, withdraw: tuple[str, ...] = (), port: int = 6443
) -> tuple[str, ...]:
    """Start with these flags on a machine with this address. Return what is published."""
    chosen = not port
    values: dict[str, Any] = {"data_dir": str(root), "secure_port": port or 40000, "withdraw_endpoint": withdraw}
    values["control_plane_endpoint"] = given or given_before(root, {address, "127.0.0.1", "::1"})
    config = with_published(server_config(**values, detected_addresses=(address,)), root, port_is_chosen=chosen)
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
