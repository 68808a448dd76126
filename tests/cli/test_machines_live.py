"""The inventory of authorized machines against a real server: the commands, and a join with a one-time code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mooring.agent import machineid
from mooring.agent.machineid import MachineIdentity
from mooring.trust.nodename import parse_code, verifier
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server, manual_approval

__all__ = ["live_server", "manual_approval", "mooring"]
PIN = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture
def machine(live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def test_machines_are_authorized_listed_and_removed(machine: CommandLine) -> None:
    name = "authorizedmachine.mooring.dev/rack-1"
    flags = ("machine", "authorize", "rack-1", "--key-fingerprint", PIN.upper().replace("SHA256", "sha256"))
    assert machine.done(*flags, "--allow-cidr", "192.0.2.0/24") == f"{name} authorized\n"
    assert machine.done(*flags, "--allow-cidr", "192.0.2.0/24", "-o", "name") == f"{name}\n", (
        "an equal entry is success"
    )
    assert machine(*flags).code == 1, "another entry of the name exists"
    header, *rows = machine.done("machine", "list", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "NODE", "PROOF", "USED", "BY", "AGE", "NETWORKS"]
    (row,) = (row for row in rows if row.startswith("rack-1 "))
    assert row.split()[1:4] == ["rack-1", "key", "<none>"]
    assert row.endswith("192.0.2.0/24")
    assert name in machine.done("machine", "list", "-o", "name").split()
    (entry,) = (
        one
        for one in json.loads(machine.done("machine", "list", "-o", "json"))["items"]
        if one["metadata"]["name"] == "rack-1"
    )
    assert entry["spec"] == {"nodeName": "rack-1", "keyFingerprint": PIN, "allowedCIDRs": ["192.0.2.0/24"]}
    assert machine.done("machine", "remove", "rack-1") == f"{name} removed\n"
    assert machine("machine", "remove", "rack-1").code == 1
    assert "rack-1" not in machine.done("machine", "list")


def test_a_key_must_be_a_fingerprint(machine: CommandLine) -> None:
    outcome = machine("machine", "authorize", "x", "--key-fingerprint", "abc")
    assert outcome.code == 2
    assert "--key-fingerprint must be sha256: and 64 hexadecimal digits" in outcome.err


def test_a_machine_with_a_code_joins_without_a_person(
    manual_approval: LiveServer, machine: CommandLine, tmp_path: Path
) -> None:
    shown = json.loads(machine.done("machine", "authorize", "other", "--code", "-o", "json"))
    assert shown["spec"]["codeVerifier"] == verifier(parse_code(shown["code"].encode()))
    assert machine("machine", "authorize", "third", "--code", "-o", "name").code == 2, "the code would be lost"
    authorized = machine("machine", "authorize", "coded", "--code")
    assert authorized.err.startswith("authorizedmachine.mooring.dev/coded authorized\nThe code is shown only now.")
    file = tmp_path / "code"
    # As the shell writes it with `> code`.
    file.write_text(authorized.out)
    token = manual_approval.create_token(groups=("system:bootstrappers:manual",))
    joined = json.loads(
        machine.done(
            "join", manual_approval.endpoint, "--token", str(token.reveal()), "--node-name", "coded", "--root", str(tmp_path),
            "--discovery-token-ca-cert-hash", manual_approval.pin, "--machine-code-file", str(file), "-o", "json",
        )
    )  # fmt: skip
    entries = json.loads(machine.done("machine", "list", "-o", "json"))["items"]
    (use,) = (one["status"]["usedBy"] for one in entries if one["metadata"]["name"] == "coded")
    assert (use["nodeName"], use["request"]) == ("coded", joined["request"])
    assert "AutoApprovedMachine" in machine.done("csr", "show", joined["request"])
    assert "No authorized machines" not in machine.done("machine", "list")


def test_a_machine_says_facts_and_a_person_sees_them(
    manual_approval: LiveServer, machine: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    firmware = tmp_path / "machine"
    (firmware / "sys/class/dmi/id").mkdir(parents=True)
    (firmware / "sys/class/dmi/id/product_serial").write_text("C02XY\n")
    monkeypatch.setattr(machineid, "this_machine", lambda: MachineIdentity(firmware, {}))
    token = manual_approval.create_token(groups=("system:bootstrappers:manual",))
    shown = json.loads(
        machine.done(
            "machine",
            "authorize",
            "facts",
            "--code",
            "--request-annotation",
            "rack=7,product-serial=C02XY",
            "-o",
            "json",
        )
    )
    assert shown["spec"]["requestAnnotations"] == {"rack": "7", "product-serial": "C02XY"}
    code = tmp_path / "code"
    code.write_text(shown["code"])
    joining = (
        "join", manual_approval.endpoint, "--token", str(token.reveal()), "--node-name", "facts", "--root", str(tmp_path),
        "--discovery-token-ca-cert-hash", manual_approval.pin, "--machine-code-file", str(code),
        "--tls-bootstrap-timeout", "1s",
    )  # fmt: skip
    # Another rack than the entry says: the code alone is not enough.
    waits = machine(*joining, "--request-annotation", "rack=8", "--request-fact", "product-serial,asset-tag")
    assert waits.code == 1
    assert "the request does not say asset-tag, which cannot be read here" in waits.all
    text = machine.done("csr", "show", "facts")
    assert "Says product-serial:  C02XY (not verified)\n" in text
    assert "Says rack:            8 (not verified)\n" in text
    assert json.loads(machine.done("csr", "show", "facts", "-o", "json"))["saidByMachine"] == {
        "product-serial": "C02XY",
        "rack": "8",
    }
    # The request that waits says something else, so that another one is made.
    joined = machine.done(*joining, "--request-annotation", "rack=7", "--request-fact", "product-serial", "-o", "json")
    assert "AutoApprovedMachine" in machine.done("csr", "show", json.loads(joined)["request"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--request-annotation", "rack"], '--request-annotation: "rack" has no value: give NAME=VALUE'),
        (["--request-fact", "color"], '--request-fact: "color" is none of product-serial, product-uuid'),
    ],
)
def test_facts_that_no_request_says(
    live_server: LiveServer, machine: CommandLine, flags: list[str], message: str
) -> None:
    outcome = machine("join", live_server.endpoint, "--token", "abcdef.0123456789abcdef", *flags)
    assert outcome.code in (1, 2)
    assert message in outcome.err
