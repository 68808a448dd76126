"""`mooring ca`: the CAs of a server, and the phases of a rollover as an administrator sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.cli.carollover import is_reached, machine_lines, status_lines
from mooring.client.cluster import ClusterClient
from mooring.pki.x509.bundles import certificates
from mooring.trust.discovery.pins import pin_of
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually

__all__ = ["mooring"]
OLD = {"publicKey": "sha256:aa", "subject": "CN=kubernetes", "notAfter": "2027-01-01T00:00:00Z"}
NEW = {"publicKey": "sha256:bb", "subject": "CN=kubernetes@1", "notAfter": "2037-01-01T00:00:00Z"}


def rollover(wanted: str = "Drain", reached: str = "Drain", **status: object) -> Obj:
    return {"spec": {"phase": wanted}, "status": {"phase": reached, **status}}


def test_the_status_names_the_next_phase_both_cas_and_machines() -> None:
    full = rollover(
        oldCA=OLD,
        newCA=NEW,
        transitions=[{"phase": "TrustBoth", "time": "2026-01-01T00:00:00Z"}],
        machinesBehind=[{"name": "n1", "reason": "why"}, {"name": "worker-2", "reason": "because"}],
        machinesBehindTotal=7,
        message="waiting",
    )
    full["spec"]["compromised"] = True
    assert status_lines(full) == [
        "Phase:              Drain",
        "Wanted:             Drain",
        "Next:               Retired, with mooring ca rollover advance",
        "Message:            waiting",
        "Old CA:             CN=kubernetes, sha256:aa, valid until 2027-01-01T00:00:00Z",
        "New CA:             CN=kubernetes@1, sha256:bb, valid until 2037-01-01T00:00:00Z",
        "Compromised:        yes: nothing of the old CA is kept",
        "Reached TrustBoth:  2026-01-01T00:00:00Z",
        "Machines behind:    7",
        "  n1        why",
        "  worker-2  because",
        "  and 5 more",
    ]
    given_up = status_lines({"spec": {"phase": "Aborted", "compromised": True}})
    assert "Compromised:        yes: nothing of the new CA is kept" in given_up
    begun = status_lines({"spec": {"phase": "Prepared"}, "status": {"oldCA": {"publicKey": "sha256:00"}}})
    assert [line for line in begun if line.startswith("Old CA")] == ["Old CA:             sha256:00"]
    bare = status_lines({"spec": {"phase": "TrustBoth"}})
    assert bare[0] == "Phase:              <none>"
    assert bare[-1] == "Machines behind:    not counted before Drain"
    done = status_lines(rollover("Retired", "Done"))
    assert done == ["Phase:              Done"], "nothing is wanted, and no machine is behind"
    assert machine_lines({}) == []


@pytest.mark.parametrize(
    ("obj", "reached"),
    [
        pytest.param(rollover("Drain", "Drain"), True, id="reached"),
        pytest.param(rollover("Retired", "Drain"), False, id="waiting"),
        pytest.param(rollover("Retired", "Retired"), False, id="the keys are still there"),
        pytest.param(rollover("Retired", "Done"), True, id="done"),
        pytest.param(rollover("Aborted", "Aborting"), False, id="aborting"),
        pytest.param(rollover("Aborted", "Aborted"), True, id="aborted"),
    ],
)
def test_a_command_ends_well_when_the_wanted_phase_is_reached(obj: Obj, reached: bool) -> None:
    assert is_reached(obj) is reached


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    running = start_server(tmp_path / "data")
    try:
        yield running
    finally:
        running.stop()


def test_a_rollover_is_begun_shown_aborted_and_begun_again(server: LiveServer, mooring: CommandLine) -> None:
    flags = ("--kubeconfig", str(server.kubeconfig))
    old = server.ca_pem
    missing = mooring("ca", "rollover", "status", *flags)
    assert (missing.code, missing.out) == (0, "no rollover; begin one with mooring ca rollover start\n")
    assert mooring.done("ca", "rollover", "status", "-o", "json", *flags) == "null\n"
    assert mooring.done("ca", "rollover", "status", "-o", "name", *flags) == ""
    assert "no rollover of the CA is under way; begin one" in mooring("ca", "rollover", "advance", *flags).err
    assert mooring.done("ca", "rollover", "start", *flags) == "reached TrustBoth\n"
    again = mooring("ca", "rollover", "start", *flags)
    assert again.code == 1
    assert "a rollover is under way, it has reached TrustBoth" in again.err
    assert "Next:               IssueNew" in mooring.done("ca", "rollover", "status", *flags)
    assert mooring.done("ca", "rollover", "status", "-o", "name", *flags).startswith("certificateauthorityrollover.")
    assert json.loads(mooring.done("ca", "rollover", "status", "-o", "json", *flags))["status"]["phase"] == "TrustBoth"

    pins = [str(pin_of(one)) for one in certificates(server.ca_pem)]
    shown = mooring.done("ca", "show", "--data-dir", str(server.data_dir))
    assert [line.split()[0] for line in shown.splitlines()] == [
        "ROLE", "issuing", "trusted", "cross-signed",
    ]  # fmt: skip
    assert all(pin in shown for pin in pins)
    listed = json.loads(mooring.done("ca", "show", "--data-dir", str(server.data_dir), "-o", "json"))["authorities"]
    assert [one["pin"] for one in listed[:2]] == pins
    line = mooring.done("token", "create", "--print-join-command", *flags)
    assert all(f"--discovery-token-ca-cert-hash {pin}" in line for pin in pins)

    published = eventually(lambda: cluster_info(server, "superseded-cas"), server)
    assert published == pins[1]
    assert mooring.done("ca", "rollover", "abort", *flags) == "reached Aborted\n"
    assert server.ca_pem == old
    eventually(lambda: not cluster_info(server, "superseded-cas"), server)
    assert not (server.data_dir / "pki/cross-signed.crt").exists()
    ended = mooring("ca", "rollover", "advance", *flags)
    assert ended.code == 1
    assert "the rollover was aborted" in ended.err
    later = mooring("ca", "rollover", "start", "--compromised", "--wait", "0s", "-o", "name", *flags)
    assert (later.code, later.out) == (1, "certificateauthorityrollover.mooring.dev/cluster-ca\n")


def cluster_info(server: LiveServer, key: str) -> str:
    async def read(client: ClusterClient) -> str:
        found = await client.get("configmaps", "cluster-info", "kube-public")
        return str(found["data"].get(key, ""))

    return server.run(read)


def test_a_data_directory_without_a_ca_is_an_error(tmp_path: Path, mooring: CommandLine) -> None:
    outcome = mooring("ca", "show", "--data-dir", str(tmp_path))
    assert outcome.code == 1
    assert "ca.crt cannot be read" in outcome.err


def test_an_abort_ends_well_although_it_replaces_the_certificate_of_the_administrator(
    server: LiveServer, mooring: CommandLine
) -> None:
    flags = ("--kubeconfig", str(server.kubeconfig))
    old = server.ca_pem
    for verb, phase in (("start", "TrustBoth"), ("advance", "IssueNew"), ("advance", "Drain"), ("abort", "Aborted")):
        assert mooring.done("ca", "rollover", verb, *flags) == f"reached {phase}\n"
    assert server.ca_pem == old
