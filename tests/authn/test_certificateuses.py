"""Uses of the certificates of nodes, noted behind the requests: what is noted, when, and how little.

Source: docs/names-and-membership.md#one-machine-for-each-name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from mooring.api.mooring.uniqueness import with_use
from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import OVERLAP, RENEWAL_OVERLAP, CertificateUses
from mooring.pki.x509.clientcertificate import RecordedCertificate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FINGERPRINTS = {name: f"{number:064x}" for number, name in enumerate("PCDX")}


def peer(name: str, user: str = "system:node:n1") -> RecordedCertificate:
    fingerprint = FINGERPRINTS[name]
    return RecordedCertificate(user, "n1", fingerprint, 1, f"sha256:{fingerprint}", "", NOW, ())


def identity(*uses: str) -> Obj:
    """Return an identity with the keys P, and C and D that were requested with P."""
    keys = [
        {
            "publicKey": f"sha256:{FINGERPRINTS[name]}",
            "serialNumber": "1",
            "parent": "" if name == "P" else f"sha256:{FINGERPRINTS['P']}",
        }
        for name in "PCD"
    ]
    used = [
        {
            "certificate": key["publicKey"],
            "publicKey": key["publicKey"],
            "parent": key["parent"],
            "firstUsed": "2026-01-01T00:00:00Z",
        }
        for key in keys
        if key["publicKey"] in {f"sha256:{FINGERPRINTS[name]}" for name in uses}
    ]
    return {
        "metadata": {"name": "n1", "resourceVersion": "1"},
        "spec": {"keys": keys},
        "status": {"certificates": used},
    }


@dataclass
class World:
    """A server process: its notes, a clock of its own, and the identity that it sees."""

    obj: Obj | None
    seconds: float = 0.0
    uses: CertificateUses = field(init=False)

    def __post_init__(self) -> None:
        self.uses = CertificateUses(lambda: self.seconds, most=2)

    def use(self, name: str, user: str = "system:node:n1") -> list[tuple[str, str]]:
        """Use a certificate; return what is noted: the certificate, and the one that it is behind."""
        found = FixedView([self.obj] if self.obj is not None else [])
        self.uses.note(peer(name, user), "192.0.2.1", {"nodeidentities": found}, NOW)
        by_fingerprint = {f"sha256:{value}": one for one, value in FINGERPRINTS.items()}
        return [(by_fingerprint[one.use.certificate], by_fingerprint.get(one.behind, "")) for one in self.uses.take()]

    def record(self, name: str, behind: str) -> None:
        """Store what was noted, as another version."""
        assert self.obj is not None
        self.uses.note(peer(name), "192.0.2.1", {"nodeidentities": FixedView([self.obj])}, NOW)
        (noted,) = self.uses.take()
        changed = with_use(self.obj, noted.use, noted.behind)
        assert changed is not None
        self.obj = {**changed, "metadata": {**changed["metadata"], "resourceVersion": "2"}}


@pytest.mark.parametrize(
    ("obj", "name", "user", "noted"),
    [
        pytest.param(identity(), "P", "system:node:n1", [("P", "")], id="the first use"),
        pytest.param(identity("P"), "P", "system:node:n1", [], id="a further use"),
        pytest.param(identity("P"), "C", "system:node:n1", [("C", "")], id="the first use after a renewal"),
        pytest.param(identity("P"), "X", "system:node:n1", [], id="a key that the identity does not list"),
        pytest.param(None, "P", "system:node:n1", [], id="a node without an identity"),
        pytest.param(identity(), "P", "system:kube-proxy", [], id="a user that all machines share"),
    ],
)
def test_what_is_noted(obj: Obj | None, name: str, user: str, noted: list[tuple[str, str]]) -> None:
    assert World(obj).use(name, user) == noted


@pytest.mark.parametrize(
    ("uses", "name", "overlap", "newest"),
    [
        pytest.param("PC", "P", RENEWAL_OVERLAP, "C", id="a certificate and the one that followed it"),
        pytest.param("CD", "C", OVERLAP, "D", id="two of which neither followed the other"),
    ],
)
def test_a_machine_may_use_two_certificates_for_a_while(uses: str, name: str, overlap: float, newest: str) -> None:
    world = World(identity(*uses))
    assert world.use(name) == []
    world.seconds = overlap - 1
    assert world.use(name) == []
    assert world.use(newest) == []
    world.seconds = overlap
    assert world.use(name) == [(name, newest)]
    world.record(name, newest)
    assert world.use(name) == [], "it is told once"
    assert world.use(newest) == [(newest, "")], "the newer one is used after the older one returned"


def test_a_use_that_is_noted_already_is_not_noted_again() -> None:
    world = World(identity())
    view = {"nodeidentities": FixedView([world.obj or {}])}
    for _ in range(3):
        world.uses.note(peer("P"), "192.0.2.1", view, NOW)
    assert len(world.uses.take()) == 1


def test_the_notes_are_bounded_and_the_next_use_is_noted() -> None:
    world = World(identity())
    view = {"nodeidentities": FixedView([world.obj or {}])}
    for name in "PCD":
        world.uses.note(peer(name), "192.0.2.1", view, NOW)
    assert len(world.uses.take()) == 2
    assert world.use("D") == [("D", "")]


def test_a_certificate_with_nothing_to_say_is_not_judged_again_for_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(identity("P"))
    assert world.use("P") == []
    monkeypatch.setattr("mooring.authn.lastuses.newer_uses", lambda *_: pytest.fail("judged again"))
    assert world.use("P") == []
