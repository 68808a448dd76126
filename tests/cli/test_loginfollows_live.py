"""A login follows its cluster through a rollover of the CA, in its record and in the kubeconfig."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.cli.login.following import remembered_id
from mooring.pki.x509.bundles import certificates
from mooring.trust.discovery.pins import pin_of
from mooring.trust.kubeconfigtext import parse_kubeconfig
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.workstation import TOKEN, Workstation

PLURAL = "certificateauthorityrollovers"


@pytest.fixture
def robot(tmp_path: Path) -> Iterator[Workstation]:
    """A workstation with a login by a token file, whose credential may be renewed without a person."""
    (tmp_path / "tokens.csv").write_text(f'{TOKEN},robot,43,"ci"\n')
    server = start_server(tmp_path / "data", "--token-auth-file", str(tmp_path / "tokens.csv"), "--login-ttl", "1m")
    try:
        home = tmp_path / "home"
        home.mkdir()
        found = Workstation(server, home)
        assert found.login("--token-file", str(found.token_file())).code == 0
        yield found
    finally:
        server.stop()


def pins(pem: bytes) -> list[str]:
    return [str(pin_of(one)) for one in certificates(pem)]


def known(robot: Workstation) -> tuple[list[str], list[str]]:
    """Return the pins in the record and in the kubeconfig."""
    return pins(robot.only_login().place.ca_pem), pins(
        parse_kubeconfig(robot.kubeconfig.read_text()).clusters[0].ca_pem
    )


def renewed(robot: Workstation) -> str:
    """Let the credential expire, and return who the server then says it is, by the kubeconfig."""
    robot.age(timedelta(seconds=-1))
    done = robot.mooring("auth", "whoami", "-o", "json")
    return str(json.loads(done.out)["status"]["userInfo"]["username"]) if done.code == 0 else done.err


def move(server: LiveServer, robot: Workstation, phase: str, *words: str) -> None:
    robot.mooring("ca", "rollover", *words, "--kubeconfig", str(server.kubeconfig))

    def reached() -> bool:
        found: Any = server.run(lambda client: client.get(PLURAL, "cluster-ca"))
        return bool((found.get("status") or {}).get("phase") == phase)

    eventually(reached, server)


def test_a_login_goes_on_through_a_rollover_and_loses_the_old_ca(robot: Workstation) -> None:
    server = robot.server
    (old,) = pins(server.ca_pem)
    assert renewed(robot) == "robot"
    copy = robot.kubeconfig.read_text()
    move(server, robot, "TrustBoth", "start")
    assert renewed(robot) == "robot"
    both = pins(server.ca_pem)
    assert known(robot) == (both, both)
    # A copy of the kubeconfig from before knows one of them.
    now = robot.kubeconfig.read_text()
    robot.kubeconfig.write_text(copy)
    assert robot.mooring("auth", "whoami").code == 0
    robot.kubeconfig.write_text(now)

    move(server, robot, "IssueNew", "advance")
    move(server, robot, "Drain", "advance")
    move(server, robot, "Done", "advance", "--force")
    assert renewed(robot) == "robot"
    (new,) = pins(server.ca_pem)
    assert new != old
    assert known(robot) == ([new], [new])
    assert renewed(robot) == "robot"


def test_a_login_that_was_away_during_the_rollover_comes_back(robot: Workstation) -> None:
    server = robot.server
    move(server, robot, "TrustBoth", "start")
    for phase in ("IssueNew", "Drain", "Done"):
        move(server, robot, phase, "advance", "--force")
    assert renewed(robot) == "robot"
    assert known(robot) == (pins(server.ca_pem), pins(server.ca_pem))


def test_a_login_does_not_follow_a_ca_that_nothing_vouches_for(robot: Workstation) -> None:
    server, before = robot.server, known(robot)
    move(server, robot, "TrustBoth", "start", "--compromised")
    for phase in ("IssueNew", "Drain", "Done"):
        move(server, robot, phase, "advance", "--force", "--compromised")
    failure = renewed(robot)
    (new,) = pins(server.ca_pem)
    assert f"The machine there names the CA {new}" in failure
    assert known(robot) == before
    # A person has compared it.
    refresh = ("kubeconfig", "refresh", "--discovery-token-ca-cert-hash", new)
    assert robot.mooring(*refresh).code == 0
    assert renewed(robot) == "robot"
    assert known(robot) == ([new], [new])


def broken(place: Path) -> None:
    place.write_text("apiVersion: v1\nkind: Config\n")


def locked(place: Path) -> None:
    place.with_name("config.lock").touch()


@pytest.mark.parametrize("change", [broken, locked], ids=["without its entries", "locked by another program"])
def test_a_kubeconfig_that_cannot_be_changed_keeps_what_it_has(
    robot: Workstation, change: Callable[[Path], None]
) -> None:
    entries = robot.kubeconfig.read_text()
    move(robot.server, robot, "TrustBoth", "start")
    robot.age(timedelta(seconds=-1))
    elsewhere = robot.home / "elsewhere"
    elsewhere.write_text(entries)
    change(robot.kubeconfig)
    before = robot.kubeconfig.read_text()
    done = robot.mooring("auth", "whoami", "--kubeconfig", str(elsewhere))
    assert done.code == 0, done.err
    assert robot.kubeconfig.read_text() == before
    assert pins(robot.only_login().place.ca_pem) == pins(robot.server.ca_pem)
    assert robot.mooring("auth", "whoami", "--kubeconfig", str(elsewhere)).code == 0


def test_a_login_sends_another_cluster_of_the_same_ca_nothing(robot: Workstation, tmp_path: Path) -> None:
    first = robot.server
    assert renewed(robot) == "robot"
    known_id = remembered_id(robot.only_login().place.cluster())
    assert known_id
    first.stop()
    shutil.copytree(tmp_path / "data/pki", tmp_path / "second/pki")
    flags = ("--token-auth-file", str(tmp_path / "tokens.csv"), "--login-ttl", "1m")
    second = start_server(tmp_path / "second", *flags, port=first.port)
    try:
        robot.age(timedelta(seconds=-1))
        record, entries = robot.only_login(), robot.kubeconfig.read_text()
        ca = str(tmp_path / "data/pki/ca.crt")
        token = ("--token-file", str(robot.token_file()))
        for words in (
            ("credential", "--login", record.id),
            ("login",),
            ("login", "--name", record.name),
            ("login", *token),
            ("login", "--server", first.url, "--certificate-authority", ca, *token),
        ):
            done = robot.mooring(*words)
            assert (done.code, done.out) == (1, ""), words
            assert "another cluster answers there: its id is " in done.err, words
            assert done.err.endswith(
                f", and the known one is {known_id}; check the address, or leave the known cluster first\n"
            )
        assert (robot.only_login(), robot.kubeconfig.read_text()) == (record, entries)
        # Which a person does by a logout.
        assert robot.mooring("logout", "--name", record.name).code == 0
        assert robot.login(*token).code == 0
    finally:
        second.stop()
