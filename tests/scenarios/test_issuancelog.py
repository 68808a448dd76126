"""Records of issued certificates: whole through `kill -9` during joins, and every change of the database file is found.

A leaked token is withdrawn with everything that it obtained.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.agent import certificaterequest
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import PeerError, UnauthorizedError
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken, generate_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.issuancelog import record_name
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.killable import KillableServer, client_of, seeded
from tests.support.rewrittenrecords import rewrite

__all__ = ["mooring"]

MACHINES = 10
PATIENCE = 60.0
PAUSE = 0.05

clock = SystemClock()


async def certificate(client: ClusterClient, name: str, key: PrivateKey) -> bytes:
    """Get a certificate from a server that may be killed and started again."""
    made = certificaterequest.node_request(key, name)
    while True:
        try:
            obj, _ = await certificaterequest.send_request(client, made, key, clock.now())
            return await certificaterequest.wait(client, obj, 1.0)
        except PeerError as error:
            if isinstance(error, certificaterequest.RequestEndedError):
                raise
            await asyncio.sleep(PAUSE)


async def records_of(admin: ClusterClient) -> list[Obj]:
    return list((await admin.list("lineagerecords")).items)


async def join_while_killed(
    server: KillableServer, token: BootstrapToken, keys: dict[str, PrivateKey], entries: int
) -> dict[str, bytes]:
    """Let machines join, one after the other, and kill the server once that many certificates are recorded."""
    ca_pem = (server.data_dir / "pki/ca.crt").read_bytes()
    async with (
        server.client() as admin,
        client_of(server, ca_pem, KubeconfigUser("bootstrap", token=Secret(token.reveal()))) as machine,
        asyncio.timeout(4 * PATIENCE),
    ):
        await admin.create("secrets", to_secret(new_record(token, clock.now())))
        first, *others = keys
        issued = {first: await certificate(machine, first, keys[first])}
        joins = {name: asyncio.create_task(certificate(machine, name, keys[name])) for name in others}
        while sum(len(one["spec"]["entries"]) for one in await records_of(admin)) < entries:
            await asyncio.sleep(0.002)
        server.kill()
        server.launch()
        await server.ready()
        issued |= {name: await task for name, task in joins.items()}
        return issued


async def started(server: KillableServer) -> None:
    server.launch()
    await server.ready()


def change(database: Path, statements: Callable[[sqlite3.Connection], None]) -> None:
    with sqlite3.connect(database) as connection:
        statements(connection)
    connection.close()


def key_of(sequence: int) -> str:
    return f"/registry/mooring.dev/lineagerecords/{record_name(sequence)}"


def value_of(connection: sqlite3.Connection, sequence: int) -> str:
    found: bytes = connection.execute("SELECT value FROM log WHERE key = ?", (key_of(sequence),)).fetchone()[0]
    return found.decode()


def put(connection: sqlite3.Connection, sequence: int, value: str) -> None:
    rewrite(connection, key_of(sequence), value.encode())


def remove(connection: sqlite3.Connection, sequence: int) -> None:
    for table in ("log", "live"):
        connection.execute(f"DELETE FROM {table} WHERE key = ?", (key_of(sequence),))


def edit(connection: sqlite3.Connection) -> None:
    put(connection, 1, value_of(connection, 1).replace("system:node:", "system:nodx:"))


def cut(connection: sqlite3.Connection) -> None:
    remove(connection, 2)


def reorder(connection: sqlite3.Connection) -> None:
    first, second = value_of(connection, 1), value_of(connection, 2)
    put(connection, 1, second.replace(record_name(2), record_name(1)))
    put(connection, 2, first.replace(record_name(1), record_name(2)))


def cut_tail(connection: sqlite3.Connection) -> None:
    prefix = key_of(1)[:-16]
    last = connection.execute("SELECT max(key) FROM live WHERE key LIKE ?", (prefix + "%",)).fetchone()[0]
    remove(connection, int(last.removeprefix(prefix)))


DAMAGES: dict[str, tuple[Callable[[sqlite3.Connection], None], str]] = {
    "an edit": (edit, f"record {record_name(1)}: its content was changed"),
    "a cut": (cut, f"are missing, from {record_name(2)} on"),
    "a reorder": (reorder, f"record {record_name(1)}: it does not follow the record before it"),
    "a cut of the last": (cut_tail, "it is missing: the checkpoint sha256:"),
}


@pytest.mark.crash
def test_records_survive_kills_and_betray_every_change(tmp_path: Path, mooring: CommandLine) -> None:
    moments = seeded()
    server = KillableServer(tmp_path / "data")
    config = str(server.data_dir / "admin.conf")
    token, other = generate_token(moments.randbytes), generate_token(moments.randbytes)
    keys = {f"n{number}": generate_key() for number in range(MACHINES)}
    try:
        asyncio.run(started(server))
        issued = asyncio.run(join_while_killed(server, token, keys, moments.randrange(2, MACHINES - 2)))
        stranger = generate_key()
        asyncio.run(join_alone(server, other, "stranger", stranger))

        verified = json.loads(mooring.done(
            "issuance", "verify", "--data-dir", str(server.data_dir), "--kubeconfig", config, "-o", "json"
        ))  # fmt: skip
        assert verified["faults"] == []
        assert verified["certificates"] >= MACHINES + 1
        checkpoint = mooring.done("issuance", "checkpoint", "--kubeconfig", config).strip()
        assert checkpoint == verified["head"]
        listed = json.loads(mooring.done("issuance", "list", "--token", token.id, "--kubeconfig", config, "-o", "json"))
        assert {entry["node"] for entry in listed["items"]} == set(keys)
        assert {entry["sourceAddress"] for entry in listed["items"]} == {"127.0.0.1"}

        renewed = asyncio.run(renew(server, "n0", issued["n0"], keys["n0"]))
        impact = json.loads(mooring.done("token", "impact", token.id, "--kubeconfig", config, "-o", "json"))
        assert impact["nodes"] == sorted(keys)
        assert [one["credential"][:11] for one in impact["certificates"] if not one.get("token")] == ["X509SHA256="]
        check_damages(server, checkpoint, mooring, config)

        asyncio.run(started(server))
        outcome = mooring("token", "impact", token.id, "--revoke", "--kubeconfig", config)
        assert outcome.code == 0, outcome.err
        assert f'bootstrap token "{token.id}" deleted' in outcome.err
        again = mooring("token", "impact", token.id, "--revoke", "--kubeconfig", config)
        assert again.code == 0, again.err
        asyncio.run(check_revoked(server, {**issued, "n0": renewed[0]}, {**keys, "n0": renewed[1]}))
    except BaseException:
        print(server.log[-3000:])  # noqa: T201 - shown with the failure
        raise
    finally:
        server.kill()


async def join_alone(server: KillableServer, token: BootstrapToken, name: str, key: PrivateKey) -> None:
    ca_pem = (server.data_dir / "pki/ca.crt").read_bytes()
    async with (
        server.client() as admin,
        client_of(server, ca_pem, KubeconfigUser("b", token=Secret(token.reveal()))) as machine,
    ):
        await admin.create("secrets", to_secret(new_record(token, clock.now())))
        await certificate(machine, name, key)


def node_user(issued: bytes, key: PrivateKey) -> KubeconfigUser:
    return KubeconfigUser("node", certificate_pem=issued, key=Secret(private_key_pem(key)))


async def renew(server: KillableServer, name: str, issued: bytes, key: PrivateKey) -> tuple[bytes, PrivateKey]:
    """Renew as a node does: a new key, requested with the old certificate."""
    ca_pem, new = (server.data_dir / "pki/ca.crt").read_bytes(), generate_key()
    async with client_of(server, ca_pem, node_user(issued, key)) as node:
        return await certificate(node, name, new), new


def check_damages(server: KillableServer, checkpoint: str, mooring: CommandLine, config: str) -> None:
    """Damage the database in every way, and have it found; the database is whole again afterwards."""
    assert asyncio.run(server.stop()) == 0
    saved = server.data_dir.parent / "saved"
    shutil.copytree(server.data_dir, saved)
    for damage, message in DAMAGES.values():
        change(server.data_dir / "mooring.db", damage)
        asyncio.run(started(server))
        outcome = mooring(
            "issuance",
            "verify",
            "--data-dir",
            str(server.data_dir),
            "--checkpoint",
            checkpoint,
            "--kubeconfig",
            config,
        )
        assert outcome.code == 1, outcome
        assert message in outcome.err, outcome
        server.kill()
        shutil.rmtree(server.data_dir)
        shutil.copytree(saved, server.data_dir)


async def check_revoked(server: KillableServer, issued: dict[str, bytes], keys: dict[str, PrivateKey]) -> None:
    ca_pem = (server.data_dir / "pki/ca.crt").read_bytes()
    for name, certificate_pem in issued.items():
        async with client_of(server, ca_pem, node_user(certificate_pem, keys[name])) as node:
            with pytest.raises(UnauthorizedError):
                await node.get("nodes", name)
