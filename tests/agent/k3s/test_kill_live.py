"""Death of an agent between any two changes of its disk, during a join the k3s way and during a renewal.

Invariants: the next run makes a valid member; a key that was on disk is used again; no file under its final name is incomplete; no
temporary file, pending key or token is left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mooring.agent import registration
from mooring.agent.k3s import membership
from mooring.agent.k3s.files import AgentFiles, GivenToken, KeyPairFiles
from mooring.agent.k3s.membership import AgentPlan, join
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.pairfiles import Pair
from mooring.client.files import TEMPORARY
from mooring.client.http.credentials import ClientCredentials
from mooring.clock import Clock
from mooring.pki.keys import public_key_der
from mooring.trust.discovery.fetch import Polling
from mooring.trust.httpexchange import CERTIFICATE, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.k3s.exchanges import BY_ROOTS, WANTED
from mooring.trust.k3s.identity import NODE_IP, NODE_NAME, NODE_PASSWORD
from mooring.trust.kubeconfig import Cluster
from tests.support.manualclock import HurriedClock
from tests.support.supervisorpeer import Asked, SupervisorPeer, supervisor_peer
from tests.support.testca import ThrowawayCA

CHANGES = ("replace", "rename", "unlink", "fsync", "mkdir")
FSYNC = os.fsync
"""Counted and left out: the kernel keeps what a killed process has written."""


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the program runs afterwards that changes the disk."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, left: int) -> Iterator[Callable[[], int]]:
    """Let the process die just before its change number `left` + 1. Yield a function that returns how many were left."""

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return None if function is FSYNC else function(*args, **kwargs)

        return change

    with monkeypatch.context() as patched:
        for name in CHANGES:
            patched.setattr(os, name, counted(getattr(os, name)))
        yield lambda: left


def plan(peer: SupervisorPeer, root: Path) -> AgentPlan:
    settings = K3sJoinSettings(
        server=(peer.url,),
        node_name="worker",
        root=str(root),
        node_ip=("192.0.2.7",),
        with_node_id=True,
        register_node=registration.NONE,
    )
    return AgentPlan(settings=settings, token=GivenToken(None, root / "token"), polling=Polling(attempts=1))


def answering(peer: SupervisorPeer) -> Callable[[HttpRequest, Clock], Awaitable[HttpResponse | HttpFailure]]:
    """Return a transport that hands requests to the peer without a connection."""

    async def fetch(request: HttpRequest, clock: Clock) -> HttpResponse | HttpFailure:
        if request.target == BY_ROOTS:
            return HttpFailure(CERTIFICATE, "unable to get local issuer certificate")
        user, token = "", ""
        if request.credentials is not None:
            presented = await ClientCredentials(request.credentials, Cluster(""), clock.now).present()
            user = "system:node:worker" if presented.key is not None else ""
            token = presented.authorization.reveal().decode() if presented.authorization is not None else ""
        headers = dict(request.headers) | {name: value.reveal().decode() for name, value in request.secret_headers}
        name, password, addresses = (headers.get(one, "") for one in (NODE_NAME, NODE_PASSWORD, NODE_IP))
        path = urlsplit(request.url).path
        asked = Asked(request.method, path, user, token, name, password, addresses, request.body or b"")
        return HttpResponse(*peer.answer(asked))

    return fetch


def joined(plan: AgentPlan) -> None:
    asyncio.run(join(plan, HurriedClock(), lambda progress: None))


def check_nothing_is_half_written(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file() and not path.name.endswith(TEMPORARY) and path != root / "token":
            assert path.read_bytes().endswith(b"\n"), path


def test_killed_between_any_two_changes_of_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with supervisor_peer() as peer:
        monkeypatch.setattr(membership, "fetch", answering(peer))
        for killed_after in range(1000):
            root = tmp_path / str(killed_after)
            root.mkdir()
            (root / "token").write_text(peer.token)
            given = plan(peer, root)
            files = given.files()
            peer.passwords.clear()
            peer.issued.clear()
            with dying(monkeypatch, killed_after) as left:
                try:
                    joined(given)
                except KilledError:
                    pass
                else:
                    assert left() >= 0
                    assert killed_after > 60, "there are more changes than that"
                    return
            check_nothing_is_half_written(root)
            kept = {name: _pending(pair) for name, pair in files.pairs.items()}
            joined(given)
            check_member(files, root)
            keys = [public_key_der(one.public_key()) for one in peer.issued]  # type: ignore[arg-type]  # ECDSA keys
            assert len(set(keys)) == len(WANTED), "one certificate has one key, however often it was asked for"
            for name, key in kept.items():
                assert key in ("", _pair(files.pairs[name]).key_pem.reveal().decode())
    raise AssertionError("a join does not change its disk a thousand times")


def check_member(files: AgentFiles, root: Path) -> None:
    for pair in files.pairs.values():
        assert pair.read_pair() is not None
        assert not pair.next_key.exists()
        assert not pair.next_certificate.exists()
    assert (root / "token").read_text() == ""
    check_nothing_is_half_written(root)
    # the next write to a directory removes what a killed writer left in it
    left = [path for path in root.rglob(f"*{TEMPORARY}") if path.stat().st_size]
    assert not [path for path in left if b"PRIVATE KEY" in path.read_bytes()]


def _pending(files: KeyPairFiles) -> str:
    return files.next_key.read_text() if files.next_key.exists() else ""


def _pair(files: KeyPairFiles) -> Pair:
    pair = files.read_pair()
    assert pair is not None
    return pair


def test_a_pair_is_replaced_whole_wherever_the_process_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = ThrowawayCA()
    for killed_after in range(100):
        files = KeyPairFiles(tmp_path / str(killed_after), "client-kubelet")
        files.directory.mkdir()
        before = ca.node("worker")
        old = Pair((before.certificate,), before.key)
        files.current.write_bytes(old.certificate_pem)
        files.key.write_bytes(old.key_pem.reveal())
        new = None
        with dying(monkeypatch, killed_after) as left:
            try:
                key = files.ensure_pending_key()
                made = ca.custom("system:node:worker", key=key)
                new = Pair((made.certificate,), key)
                files.replace(new)
            except KilledError:
                pass
        found = _pair(files).certificate_pem
        assert found in {old.certificate_pem, *([new.certificate_pem] if new else [])}
        if left() >= 0:
            assert new is not None
            assert found == new.certificate_pem
            assert killed_after > 5
            return
    raise AssertionError("a replacement does not change the disk a hundred times")


def test_what_is_left_of_a_replacement_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    files = KeyPairFiles(tmp_path, "client-kubelet")
    made = ThrowawayCA().node("worker")
    files.next_certificate.write_bytes(made.certificate_pem)
    assert files.read_pair() is None
    assert not files.next_certificate.exists()
    files.next_key.write_text("no key")
    assert files.ensure_pending_key() is not None
    files.remove()
    assert list(tmp_path.iterdir()) == []
