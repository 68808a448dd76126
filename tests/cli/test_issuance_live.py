"""`mooring issuance` and `mooring token impact` against a server, as a person uses them."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import certificaterequest
from mooring.api.mooring.certificaterevocation import key_entry
from mooring.api.mooring.lineagerecord import MIN_RETENTION
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock, rfc3339
from mooring.controlplane.storewatermark.watermarkfile import read_watermark
from mooring.errors import ConflictError
from mooring.pki.keys import generate_key, load_private_key, public_key_pem
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust import issuancelog
from mooring.trust.bootstraptoken.token import BootstrapToken, parse_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.issuancelog import START, IssuanceLogKey, record_name
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.encryption import IDENTITY, entry, file, local
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.polling import eventually
from tests.support.rewrittenrecords import rewrite

__all__ = ["live_server", "mooring"]

TOKEN = parse_token("audit1.0123456789abcdef")
OTHER_HASH = "sha256:" + "0" * 63 + "1"


@pytest.fixture
def joined(live_server: LiveServer) -> LiveServer:
    """Let two machines join with one token, once for the server: a worker may come back to this file after others."""
    live_server.once(join_both)
    return live_server


def join_both(server: LiveServer) -> None:
    server.run(lambda client: client.create("secrets", to_secret(new_record(TOKEN, SystemClock().now()))))
    asyncio.run(join(server, TOKEN, "audited-1", "audited-2"))


async def join(server: LiveServer, token: BootstrapToken, *names: str) -> None:
    cluster = Cluster("", server.url, server.ca_pem)
    async with ClusterClient(cluster, KubeconfigUser("b", token=Secret(token.reveal())), SystemClock()) as client:
        for name in names:
            key = generate_key()
            made = certificaterequest.node_request(key, name)
            obj, _ = await certificaterequest.send_request(client, made, key, SystemClock().now())
            await certificaterequest.wait(client, obj, 30.0)


def flags(server: LiveServer) -> tuple[str, str]:
    return "--kubeconfig", str(server.kubeconfig)


def test_certificates_are_listed_by_token_node_and_serial_number(joined: LiveServer, mooring: CommandLine) -> None:
    listed = json.loads(mooring.done("issuance", "list", "--token", TOKEN.id, "-o", "json", *flags(joined)))["items"]
    assert [entry["node"] for entry in listed] == ["audited-1", "audited-2"]
    assert listed[0]["requester"] == f"system:bootstrap:{TOKEN.id}"
    header, row = mooring.done("issuance", "list", "--node", "audited-2", *flags(joined)).splitlines()
    assert header.split() == ["TIME", "SUBJECT", "TOKEN", "SOURCE"]
    wide = mooring.done("issuance", "list", "-o", "wide", *flags(joined)).splitlines()[0]
    assert wide.split()[4:] == ["SERIAL", "REQUESTER", "EXPIRES", "TOKEN", "SUBJECT"]
    assert "system:node:audited-2" in row
    serial = listed[1]["serialNumber"]
    spaced = ":".join(("0" * (len(serial) % 2) + serial).upper()[at : at + 2] for at in range(0, len(serial), 2))
    assert mooring.done("issuance", "list", "--serial", spaced, "-o", "name", *flags(joined)) == f"{serial}\n"
    whole = mooring.done("issuance", "list", "--token", TOKEN.reveal(), "-o", "name", *flags(joined))
    assert serial in whole.splitlines()
    for text in (f"serial={serial}", f"0x{serial}"):
        assert mooring.done("issuance", "list", "--serial", text, "-o", "name", *flags(joined)) == f"{serial}\n"
    for option, text in (("--serial", "xyz"), ("--token", "no-token")):
        assert mooring("issuance", "list", option, text, *flags(joined)).code == 2
    nothing = mooring("issuance", "list", "--node", "nobody", *flags(joined))
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "No certificates found.\n")


def test_verification_says_what_it_could_not_compare(joined: LiveServer, mooring: CommandLine) -> None:
    outcome = mooring("issuance", "verify", *flags(joined))
    assert outcome.code == 0, outcome.err
    assert "are in order, up to sha256:" in outcome.out
    assert outcome.err.splitlines() == [
        "Signatures were not compared with a key that you trust: give --data-dir or --key.",
        "Nothing outside the store was compared: give --data-dir or --checkpoint.",
    ]
    checkpoint = mooring.done("issuance", "checkpoint", "-o", "json", *flags(joined))
    assert json.loads(checkpoint)["checkpoint"] == mooring.done("issuance", "checkpoint", *flags(joined)).strip()


def test_a_key_and_a_checkpoint_that_differ_are_faults(
    joined: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.pub"
    stranger.write_bytes(public_key_pem(generate_key().public_key()))
    outcome = mooring("issuance", "verify", "--key", str(stranger), *flags(joined))
    assert outcome.code == 1
    assert "record 0000000000000001: it is signed by sha256:" in outcome.err
    outcome = mooring("issuance", "verify", "--checkpoint", f"{OTHER_HASH}@1", "-o", "json", *flags(joined))
    assert outcome.code == 1
    (fault,) = json.loads(outcome.out)["faults"]
    assert fault["record"] == "0000000000000001"
    unreadable = mooring("issuance", "verify", "--checkpoint", "12", *flags(joined))
    assert unreadable.code == 2
    assert "not a checkpoint" in unreadable.err
    stranger.write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    assert mooring("issuance", "verify", "--key", str(stranger), *flags(joined)).code == 1


def test_an_impact_is_printed_before_anything_is_withdrawn(joined: LiveServer, mooring: CommandLine) -> None:
    table = mooring.done("token", "impact", TOKEN.reveal(), *flags(joined)).splitlines()
    assert table[0].split() == ["NODE", "ISSUED", "EXPIRES"]
    wide = mooring.done("token", "impact", TOKEN.id, "-o", "wide", *flags(joined)).splitlines()[0]
    assert wide.split()[3:] == ["SUBJECT", "SERIAL", "KEY", "FROM"]
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


def test_a_revoked_token_takes_the_requests_along_that_wait(joined: LiveServer, mooring: CommandLine) -> None:
    token = parse_token("audit2.0123456789abcdef")
    joined.run(lambda client: client.create("secrets", to_secret(new_record(token, SystemClock().now()))))
    asyncio.run(ask(joined, token, "waits", "example.com/slow"))
    asyncio.run(ask(joined, token, "approved", "example.com/slow"))

    def is_approved() -> bool:
        approved = conditions(joined, "approved")
        approved["status"] = {
            "conditions": [{"type": "Approved", "status": "True", "reason": "ByHand", "message": "x"}]
        }
        try:
            joined.run(lambda client: client.update("certificatesigningrequests", approved, subresource="approval"))
        except ConflictError:  # a controller writes to it as well
            return False
        return True

    eventually(is_approved)
    listed = mooring("token", "impact", token.id, *flags(joined))
    assert "2 requests of the token have no certificate yet; each may be approved" in listed.err
    dry = mooring("token", "impact", token.id, "--revoke", "--dry-run", *flags(joined))
    assert "each would be denied" in dry.err
    done = mooring("token", "impact", token.id, "--revoke", *flags(joined))
    assert done.code == 0, done.err
    assert "certificatesigningrequests/waits denied" in done.err
    assert "certificatesigningrequests/approved failed" in done.err
    found = {
        name: [(one["type"], one["reason"]) for one in conditions(joined, name)["status"]["conditions"]]
        for name in ("waits", "approved")
    }
    assert found == {
        "waits": [("Denied", "TokenRevoked")],
        "approved": [("Approved", "ByHand"), ("Failed", "TokenRevoked")],
    }
    assert mooring("token", "impact", token.id, "--revoke", *flags(joined)).code == 0, "it may be repeated"


def conditions(server: LiveServer, name: str) -> Any:
    return server.run(lambda client: client.get("certificatesigningrequests", name))


async def ask(server: LiveServer, token: BootstrapToken, name: str, signer: str) -> None:
    cluster = Cluster("", server.url, server.ca_pem)
    request = build_request(generate_key(), "any", [])
    spec = {"request": base64.b64encode(request).decode(), "signerName": signer, "usages": ["client auth"]}
    async with ClusterClient(cluster, KubeconfigUser("b", token=Secret(token.reveal())), SystemClock()) as client:
        await client.create("certificatesigningrequests", {"metadata": {"name": name}, "spec": spec})


def test_the_database_is_read_and_not_the_memory_of_the_server(mooring: CommandLine, tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    try:
        server.run(lambda client: client.create("secrets", to_secret(new_record(TOKEN, SystemClock().now()))))
        asyncio.run(join(server, TOKEN, "audited-1", "audited-2"))
        directory = ("--data-dir", str(server.data_dir))
        outcome = mooring("issuance", "verify", *directory)
        assert outcome.code == 0, outcome.err
        assert "are in order, up to sha256:" in outcome.out
        assert outcome.err == ""

        database = sqlite3.connect(server.data_dir / "mooring.db")
        key = "/registry/mooring.dev/lineagerecords/0000000000000001"
        value: bytes = database.execute("SELECT value FROM log WHERE key = ?", (key,)).fetchone()[0]
        assert b"audited-1" in value
        rewrite(database, key, value.replace(b"audited-1", b"audited-9"))
        database.commit()
        database.close()
        assert mooring("issuance", "verify", *flags(server)).code == 0, "the server answers from its memory"
        outcome = mooring("issuance", "verify", *directory)
        assert outcome.code == 1
        assert "Error: record 0000000000000001: its content was changed" in outcome.err

        named = mooring("issuance", "verify", "--storage", f"sqlite:{server.data_dir}/mooring.db")
        assert named.code == 1
        missing = mooring("issuance", "verify", "--storage", f"sqlite:{tmp_path}/none.db")
        assert (missing.code, missing.out) == (1, "")
        assert f"there is no database {tmp_path}/none.db" in missing.err
        assert mooring("issuance", "verify", "--storage", "memory:").code == 1
        elsewhere = mooring("issuance", "verify", "--data-dir", str(_without_database(server.data_dir)), *flags(server))
        assert elsewhere.code == 0, elsewhere.err
        assert "records are read through the server; name its store with --storage" in elsewhere.err
    finally:
        server.stop()


def _without_database(data_dir: Path) -> Path:
    """Return a copy of a data directory whose store is elsewhere."""
    copy = data_dir.with_name("copy")
    shutil.copytree(data_dir, copy, ignore=shutil.ignore_patterns("mooring.db*", "*.mooring-tmp"))
    return copy


def test_records_that_are_encrypted_need_their_keys(mooring: CommandLine, tmp_path: Path) -> None:
    keys = tmp_path / "encryption.json"
    keys.write_bytes(file(entry("*.mooring.dev", local("secretbox", "first")), entry("*.*", IDENTITY)))
    keys.chmod(0o600)
    server = start_server(tmp_path / "data", "--encryption-provider-config", str(keys))
    try:
        server.run(lambda client: client.create("secrets", to_secret(new_record(TOKEN, SystemClock().now()))))
        asyncio.run(join(server, TOKEN, "audited-1"))
        directory = ("--data-dir", str(server.data_dir))
        outcome = mooring("issuance", "verify", *directory, "--encryption-provider-config", str(keys))
        assert outcome.code == 0, outcome.err
        assert "1 records with 1 certificates" in outcome.out
        refused = mooring("issuance", "verify", *directory)
        assert refused.code == 1
        assert "lineagerecords 0000000000000001 in the store cannot be read" in refused.err
        assert "give --encryption-provider-config" in refused.err
        assert refused.err.count("\n") == 1
    finally:
        server.stop()


def test_a_log_that_was_trimmed_says_so_and_members_stay_known(mooring: CommandLine, tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    try:
        server.run(lambda client: client.create("secrets", to_secret(new_record(TOKEN, SystemClock().now()))))
        signing = IssuanceLogKey(load_private_key((server.data_dir / "pki/lineage.key").read_bytes()))
        ended = rfc3339(SystemClock().now() - MIN_RETENTION)
        heads = [START]

        def append(entry: Obj) -> None:
            record, head = issuancelog.new_record(heads[-1], [entry], signing)
            server.run(lambda client: client.create("lineagerecords", record))
            heads.append(head)

        for number in (1, 2):
            append({"time": ended, "event": "Issued", "serialNumber": f"{number}", "notAfter": ended})
        append({"time": ended, "event": "Trimmed", "checkpoint": str(heads[2]), "notAfter": ended})
        asyncio.run(join(server, TOKEN, "audited-1"))
        for number in (1, 2):
            server.run(partial(_delete_record, name=record_name(number)))
        notice = f"The log was trimmed: certificates that ended by {ended} may be missing.\n"
        listed = mooring("issuance", "list", "-o", "name", *flags(server))
        assert (listed.code, len(listed.out.splitlines()), listed.err) == (0, 1, notice)
        # the server writes the end of the log into store.mark within a second
        eventually(lambda: read_watermark(server.data_dir).head not in heads)
        verified = mooring("issuance", "verify", "--data-dir", str(server.data_dir))
        assert (verified.code, verified.err) == (0, notice)
        assert verified.out.startswith("2 records with 1 certificates are in order")
        document = json.loads(mooring.done("issuance", "verify", "-o", "json", *flags(server)))
        assert document["trimmed"] == str(heads[2])
        late = mooring("issuance", "verify", "--checkpoint", str(heads[1]), *flags(server))
        assert late.code == 1
        assert f"Error: record {record_name(1)}: it was trimmed" in late.err

        identity = server.run(lambda client: client.get("nodeidentities", "audited-1"))
        older = {**identity, "metadata": {"name": "older-1"}, "spec": {**identity["spec"], "token": "older1"}}
        server.run(lambda client: client.create("nodeidentities", older))
        dry = mooring("token", "impact", "older1", "--revoke", "--dry-run", *flags(server))
        assert dry.code == 0, dry.err
        key = identity["spec"]["keys"][0]["publicKey"]
        assert f"certificaterevocations/{key_entry(key)} would be created" in dry.err
        assert mooring.done("token", "impact", "older1", "-o", "name", *flags(server)) == "node/older-1\n"
        wide = mooring.done("token", "impact", "older1", "-o", "wide", *flags(server)).splitlines()[1].split()
        assert wide[-1] == "NodeIdentity"
    finally:
        server.stop()


async def _delete_record(client: ClusterClient, name: str) -> None:
    await client.delete("lineagerecords", name)
