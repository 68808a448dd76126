"""Servers that join with a URL and the server token: they take the keys sealed, share the store, and follow a rotation.

Rules kept here: the servers have data directories of their own. The flags of the second and the third name no store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.trust.k3s.token import parse_token
from tests.support import etcd, forkserver
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.servertokens import accepts

SHARED = ("ca.crt", "ca.key", "sa.key", "lineage.key")


@pytest.fixture
def first(tmp_path: Path) -> Iterator[LiveServer]:
    """The first server of a cluster, on etcd."""
    if etcd.MISSING:
        pytest.skip(etcd.MISSING)
    server = start_server(
        tmp_path / "first", "--k3s-supervisor", "--agent-token", "agent-agent-agent-agent",
        "--etcd-servers", etcd.shared().endpoints, "--etcd-prefix", etcd.fresh_prefix(),
    )  # fmt: skip
    yield server
    server.stop()


def token_of(server: LiveServer) -> str:
    return (server.data_dir / "server/token").read_text().strip()


def password(token: str) -> str:
    parsed = parse_token(token).password
    return parsed.reveal().decode() if parsed else ""


def mooring(*words: str) -> tuple[int, str, str]:
    done = forkserver.run(["-m", "mooring", *words], env=dict(os.environ))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def refused(first: LiveServer, root: Path, token: str, *flags: str) -> str:
    """Start a server that is to be refused. Return its error line; no key and no token may be left."""
    status, _, errors = mooring(
        "server", "--data-dir", str(root), "--bind-address", "127.0.0.1", "--secure-port", str(free_port()),
        "--server", first.url, "--token", token, "--k3s-supervisor", *flags,
    )  # fmt: skip
    assert status != 0
    assert not (root / "pki").exists()
    assert not (root / "server").exists()
    return [line for line in errors.splitlines() if line.startswith("Error: ")][-1]


def test_servers_join_with_a_url_and_a_token_and_follow_a_rotation(tmp_path: Path, first: LiveServer) -> None:
    token = token_of(first)
    agent = (first.data_dir / "server/agent-token").read_text().strip()
    wrong = token[:-32] + "0" * 32
    for name, bad, flags, reason in (
        ("agent", agent, (), "this is the token of an agent"),
        ("agent-as-server", agent.replace("::node:", "::server:"), (), "this is the agent token of the cluster"),
        ("bootstrap", "abcdef.0123456789abcdef", (), "this is a bootstrap token"),
        ("hashless", token.partition("::server:")[2], (), "no hash of the CA"),
        ("other-ca", f"K10{'0' * 64}::server:{'0' * 32}", (), "does not match"),
        ("wrong", wrong, (), "does not accept this server token"),
        (
            "differing",
            token,
            ("--cluster-domain", "other.local", "--service-cluster-ip-range", "10.99.0.0/16"),
            "critical configuration value mismatch: cluster-dns, cluster-domain, service-cidr",
        ),
    ):
        assert reason in refused(first, tmp_path / name, bad, *flags)

    second, third = (
        start_server(tmp_path / name, "--server", first.url, "--token", token, "--k3s-supervisor")
        for name in ("second", "third")
    )
    servers = (first, second, third)
    try:
        for name in SHARED:
            assert len({(server.data_dir / "pki" / name).read_bytes() for server in servers}) == 1
        assert all(accepts(server, password(token)) for server in servers)

        status, out, errors = mooring(
            "token", "rotate", "-s", second.url, "--data-dir", str(second.data_dir), "--grace", "1h"
        )
        assert status == 0, errors
        assert "The former one works until" in out
        eventually(lambda: len({token_of(server) for server in servers} - {token}) == 1, third)
        new = token_of(second)
        assert parse_token(new).ca_hash
        for server in servers:
            eventually(lambda server=server: accepts(server, password(new)), server)  # type: ignore[misc] # bound at once
            assert accepts(server, password(token))

        # the first server is gone: the others start again without it, with what they keep
        first.kill()
        second.restart()
        assert accepts(second, password(new))
    finally:
        second.stop()
        third.stop()


def test_a_first_server_on_sqlite_says_how_to_get_to_etcd(tmp_path: Path) -> None:
    server = start_server(tmp_path / "first", "--k3s-supervisor")
    try:
        assert "etcd disabled" in refused(server, tmp_path / "second", token_of(server))
    finally:
        server.stop()
