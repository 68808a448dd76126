"""`mooring audit` and `mooring token impact` against a server, as a person uses them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mooring.agent.certificates import certificaterequest
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.pki.keys import generate_key, public_key_pem
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken, parse_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.kubeconfig.model import Cluster, User
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server", "mooring"]

TOKEN = parse_token("audit1.0123456789abcdef")
OTHER_HASH = "sha256:" + "0" * 63 + "1"


@pytest.fixture(scope="module")
def joined(live_server: LiveServer) -> LiveServer:
    """Let two machines join with one token."""
    live_server.run(lambda client: client.create("secrets", to_secret(new_record(TOKEN, SystemClock().now()))))
    asyncio.run(join(live_server, TOKEN, "audited-1", "audited-2"))
    return live_server


async def join(server: LiveServer, token: BootstrapToken, *names: str) -> None:
    cluster = Cluster("", server.url, server.ca_pem)
    async with ClusterClient(cluster, User("b", token=Secret(token.reveal())), SystemClock()) as client:
        for name in names:
            key = generate_key()
            made = certificaterequest.node_request(key, name)
            obj, _ = await certificaterequest.send_request(client, made, key, SystemClock().now())
            await certificaterequest.wait(client, obj, 30.0)


def flags(server: LiveServer) -> tuple[str, str]:
    return "--kubeconfig", str(server.kubeconfig)


def test_certificates_are_listed_by_token_node_and_serial_number(joined: LiveServer, mooring: CommandLine) -> None:
    listed = json.loads(mooring.done("audit", "list", "--token", TOKEN.id, "-o", "json", *flags(joined)))["items"]
    assert [entry["node"] for entry in listed] == ["audited-1", "audited-2"]
    assert listed[0]["requester"] == f"system:bootstrap:{TOKEN.id}"
    header, row = mooring.done("audit", "list", "--node", "audited-2", *flags(joined)).splitlines()
    assert header.split() == ["TIME", "SUBJECT", "SERIAL", "TOKEN", "REQUESTER", "SOURCE", "EXPIRES"]
    assert "system:node:audited-2" in row
    serial = listed[1]["serialNumber"]
    spaced = ":".join(("0" * (len(serial) % 2) + serial).upper()[at : at + 2] for at in range(0, len(serial), 2))
    assert mooring.done("audit", "list", "--serial", spaced, "-o", "name", *flags(joined)) == f"{serial}\n"
    nothing = mooring("audit", "list", "--node", "nobody", *flags(joined))
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "No certificates found.\n")


def test_verification_says_what_it_could_not_compare(joined: LiveServer, mooring: CommandLine) -> None:
    outcome = mooring("audit", "verify", *flags(joined))
    assert outcome.code == 0, outcome.err
    assert "are in order, up to sha256:" in outcome.out
    assert outcome.err.splitlines() == [
        "Signatures were not compared with a key that you trust: give --data-dir or --key.",
        "Nothing outside the store was compared: give --data-dir or --checkpoint.",
    ]
    checkpoint = mooring.done("audit", "checkpoint", "-o", "json", *flags(joined))
    assert json.loads(checkpoint)["checkpoint"] == mooring.done("audit", "checkpoint", *flags(joined)).strip()


def test_a_key_and_a_checkpoint_that_differ_are_faults(
    joined: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.pub"
    stranger.write_bytes(public_key_pem(generate_key().public_key()))
    outcome = mooring("audit", "verify", "--key", str(stranger), *flags(joined))
    assert outcome.code == 1
    assert "record 0000000000000001: it is signed by sha256:" in outcome.err
    outcome = mooring("audit", "verify", "--checkpoint", f"{OTHER_HASH}@1", "-o", "json", *flags(joined))
    assert outcome.code == 1
    (fault,) = json.loads(outcome.out)["faults"]
    assert fault["record"] == "0000000000000001"
    unreadable = mooring("audit", "verify", "--checkpoint", "12", *flags(joined))
    assert unreadable.code == 2
    assert "not a checkpoint" in unreadable.err
    stranger.write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    assert mooring("audit", "verify", "--key", str(stranger), *flags(joined)).code == 1


def test_an_impact_is_printed_before_anything_is_withdrawn(joined: LiveServer, mooring: CommandLine) -> None:
    table = mooring.done("token", "impact", TOKEN.reveal(), *flags(joined)).splitlines()
    assert table[0].split() == ["NODE", "SUBJECT", "SERIAL", "KEY", "ISSUED", "EXPIRES", "FROM"]
    assert [row.split()[0] for row in table[1:]] == ["audited-1", "audited-2"]
    assert mooring.done("token", "impact", TOKEN.id, "-o", "name", *flags(joined)) == "node/audited-1\nnode/audited-2\n"
    dry = mooring("token", "impact", TOKEN.id, "--revoke", "--dry-run", *flags(joined))
    assert dry.code == 0, dry.err
    lines = dry.err.splitlines()
    assert lines[0] == f'bootstrap token "{TOKEN.id}" would be deleted'
    assert [line.split()[1:] for line in lines[1:3]] == [["would", "be", "created"]] * 2
    assert lines[-1].startswith("Not reached: ")
    assert mooring("token", "impact", TOKEN.id, "--dry-run", *flags(joined)).code == 2
    nothing = mooring("token", "impact", "nobody", *flags(joined))
    assert nothing.err == "No certificate descends from the token nobody.\n"
