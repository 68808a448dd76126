"""The files of a rollover: every phase, and a server that is killed between any two writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.api.mooring.certificateauthorityrollover import ABORTED, RETIRED
from mooring.client.files import write_atomic
from mooring.controllers.certificates.carollover import ABSENT, CLEANING, RolloverStep, next_step
from mooring.controlplane import carolloverfiles as rollover_files
from mooring.controlplane.carolloverfiles import RolloverFiles
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.datadirectory import read_ca
from mooring.controlplane.keystore import prepare, renew
from mooring.controlplane.servingcertificate import anchor
from mooring.errors import ConfigError
from mooring.pki.errors import PeerCertificateError
from mooring.pki.keys import PrivateKey, accepted_public_key, generate_key, load_private_key, private_key_pem
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, serial_number
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import cross_sign
from mooring.pki.x509.verify import ClientTrust
from mooring.trust.discovery.pins import pin_of
from tests.support.testca import Pair, ThrowawayCA, by_library

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FORWARD = (
    RolloverStep.PREPARE,
    RolloverStep.PUBLISH,
    RolloverStep.ISSUE,
    RolloverStep.DRAIN,
    RolloverStep.RETIRE,
    RolloverStep.CLEAN,
)
PHASES = ("Prepared", "TrustBoth", "IssueNew", "Drain", "Retired", ABSENT)


class Room:
    """A data directory, its rollover, and the CA that it began with."""

    def __init__(self, root: Path) -> None:
        self.root, self.pki = root, root / "pki"
        self.config: ServerConfig = server_config(data_dir=str(root), detected_addresses=("192.0.2.1",))
        prepare(self.config, NOW, secrets.token_bytes)
        self.files = RolloverFiles(root)
        self.old = read_ca(self.pki).authority.certificate

    def apply(self, *steps: RolloverStep, **options: Any) -> None:
        for step in steps:
            self.files.apply(step, NOW, secrets.token_bytes, **options)

    @property
    def phase(self) -> str:
        return self.files.read().phase

    def chain(self) -> tuple[Certificate, ...]:
        """The serving chain of a server that starts now."""
        return renew(self.config, NOW + timedelta(minutes=1), secrets.token_bytes).serving[0]

    def verifies(self, *trusted: Certificate) -> bool:
        """Return whether a client that trusts these CAs verifies the server."""
        return anchor(self.chain(), NOW + timedelta(minutes=1), trusted) is not None

    def content(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.pki)): path.read_bytes() for path in self.pki.rglob("*") if path.is_file()}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "data")


def test_the_phases_follow_one_another_and_no_client_is_lost_on_the_way(room: Room) -> None:
    assert room.phase == ABSENT
    room.apply(RolloverStep.PREPARE)
    new = certificates((room.pki / "rollover/new.crt").read_bytes())[0]
    assert read_ca(room.pki).trusted == (room.old,)
    expected = {
        "TrustBoth": (room.old, (room.old, new)),
        "IssueNew": (new, (room.old, new)),
        "Drain": (new, (new, room.old)),
        "Retired": (new, (new,)),
        ABSENT: (new, (new,)),
    }
    for step, phase in zip(FORWARD[1:], PHASES[1:], strict=True):
        room.apply(step)
        assert room.phase == phase
        ca = read_ca(room.pki)
        assert (ca.authority.certificate, ca.trusted) == expected[phase]
        assert ca.superseded == {"Drain": (room.old,), "TrustBoth": (new,)}.get(phase, ())
        assert room.verifies(room.old), "a client that missed the rollover"
        assert room.verifies(new), "a client that has only the new pin"
    assert read_ca(room.pki).retired == (room.old,)
    assert new.subject != room.old.subject
    assert set(room.content()) == {
        "ca.crt", "ca.key", "cross-signed.crt", "retired-ca.crt", "apiserver.crt", "apiserver.key",
        "lineage.key", "lineage.pub", "sa.key", "sa.pub",
    }  # fmt: skip
    assert all(path.stat().st_mode & 0o77 == 0 for path in room.pki.rglob("*"))


@pytest.mark.parametrize("step", FORWARD)
@pytest.mark.parametrize("reached", range(len(FORWARD) + 1))
def test_a_step_out_of_turn_and_a_step_that_is_repeated_change_nothing(
    room: Room, step: RolloverStep, reached: int
) -> None:
    room.apply(*FORWARD[:reached])
    before, phase = room.content(), room.phase
    if step not in (next_step(phase, RETIRED), next_step(phase, ABORTED)):
        if step is RolloverStep.PREPARE and phase not in (ABSENT, "Prepared"):
            with pytest.raises(ConfigError, match="belongs to another rollover"):
                room.apply(step)
        else:
            room.apply(step)
        assert room.content() == before


@pytest.mark.parametrize("reached", range(1, 5))
def test_an_abort_leads_back_to_the_old_ca(room: Room, reached: int) -> None:
    room.apply(*FORWARD[:reached])
    while step := next_step(room.phase, ABORTED):
        room.apply(step)
        assert room.verifies(room.old)
    ca = read_ca(room.pki)
    assert (room.phase, ca.authority.certificate, ca.trusted, ca.cross_signed) == (ABSENT, room.old, (room.old,), ())
    assert not (room.pki / "rollover").exists()


class KilledError(BaseException):
    """The server was killed."""


def write_numbers(monkeypatch: pytest.MonkeyPatch, limit: int) -> Callable[[], int]:
    """Kill the server before its change number `limit` of a file. Return a counter of the changes."""
    count = 0

    def counting(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: Any, **kwargs: Any) -> None:
            nonlocal count
            if count == limit:
                raise KilledError
            count += 1
            change(*args, **kwargs)

        return changed

    monkeypatch.setattr(rollover_files, "write_atomic", counting(write_atomic))
    monkeypatch.setattr(Path, "unlink", counting(Path.unlink))
    return lambda: count


@pytest.mark.parametrize(
    ("reached", "wanted", "changes"),
    [
        pytest.param(0, RETIRED, 14, id="forward"),
        pytest.param(1, ABORTED, 5, id="back from Prepared"),
        pytest.param(4, ABORTED, 8, id="back from Drain"),
    ],
)
def test_a_server_that_is_killed_between_two_writes_continues(
    tmp_path: Path, reached: int, wanted: str, changes: int
) -> None:
    """Each prefix of the writes is a state that verifies clients and servers, and from which the rest is done."""
    for limit in range(changes + 1):
        room = Room(tmp_path / str(limit))
        room.apply(*FORWARD[:reached])
        with pytest.MonkeyPatch.context() as patch:
            count = write_numbers(patch, limit)
            try:
                finish(room, wanted)
            except KilledError:
                pass
            else:
                assert (limit, count()) == (changes, changes), "the table has a row for each write"
        assert room.verifies(room.old), f"after {limit} writes"
        assert room.old in (*read_ca(room.pki).trusted, *read_ca(room.pki).retired), f"after {limit} writes"
        finish(room, wanted)
        ca = read_ca(room.pki)
        assert (ca.authority.certificate == room.old) is (wanted == ABORTED), f"after {limit} writes"
        assert len(ca.trusted) == 1
        assert room.verifies(room.old)
        assert not (room.pki / "rollover").exists(), f"after {limit} writes"


def finish(room: Room, wanted: str) -> None:
    """Take every step that is left."""
    while True:
        phase = room.phase
        if phase == ABSENT and (wanted == ABORTED or room.files.read().issuing != str(pin_of(room.old))):
            return
        step = next_step(phase, wanted)
        assert step is not None
        room.apply(step)


def is_refused(room: Room, key: PrivateKey, *chain: Certificate) -> bool:
    """Return whether the server refuses an administrator that `key` makes, with the certificates that it got hold of."""
    ca = read_ca(room.pki)
    name = chain[0].subject if chain else room.old.subject
    thief = ThrowawayCA("thief", NOW).custom("thief", issuer=Pair(self_signed(name.for_builder(), key), key))
    ders = [thief.der, *(one.der for one in chain)]
    try:
        ClientTrust(ca.trusted, ca.trusted, ca.distrusted, ca.forgotten).verify(ders, NOW + timedelta(minutes=1))
    except PeerCertificateError:
        return True
    return False


def self_signed(name: x509.Name, key: PrivateKey) -> Certificate:
    stranger = ThrowawayCA("stranger", NOW)
    return stranger.custom(name, key=key, extensions=[(x509.BasicConstraints(True, None), True)]).certificate


def above(room: Room) -> list[Certificate]:
    """The certificates that the server sends behind its own, and those that it keeps for that."""
    return list(dict.fromkeys((*room.chain()[1:], *read_ca(room.pki).cross_signed)))


@pytest.mark.parametrize("reached", range(7), ids=["before it", *PHASES])
@pytest.mark.parametrize("compromised", [False, True])
def test_nothing_that_leaves_a_server_makes_the_old_key_a_ca_for_clients(
    room: Room, reached: int, compromised: bool
) -> None:
    old_key = load_private_key((room.pki / "ca.key").read_bytes())
    leaked: list[Certificate] = []
    for step in FORWARD[:reached]:
        room.apply(step, compromised=compromised)
        leaked += above(room)
    for one in leaked:
        purposes = by_library(one).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    if compromised:
        assert leaked == [], "neither CA vouches for the other"
    if reached >= 5:
        old = read_ca(room.pki).authority
        forged = cross_sign(room.old, old, NOW, secrets.token_bytes)  # as earlier versions made it
        assert is_refused(room, old_key, *leaked, forged)
        assert is_refused(room, old_key)
    assert read_ca(room.pki).distrusted == ((room.old,) if reached >= 5 else ())


def test_the_new_ca_vouches_for_the_old_one_for_a_week_and_for_the_names_of_the_server(room: Room) -> None:
    room.apply(*FORWARD[:2])
    leaf, bridge = room.chain()
    assert bridge.not_valid_after_utc - bridge.not_valid_before_utc < timedelta(days=8)
    limits = by_library(bridge).extensions.get_extension_for_class(x509.NameConstraints)
    names = by_library(leaf).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    permitted = limits.value.permitted_subtrees or []
    assert limits.critical
    assert {one.value for one in permitted if isinstance(one, x509.DNSName)} == set(
        names.get_values_for_type(x509.DNSName)
    )
    assert {str(one.value) for one in permitted if isinstance(one, x509.IPAddress)} == {
        f"{address}/{address.max_prefixlen}" for address in names.get_values_for_type(x509.IPAddress)
    }
    assert room.chain()[1] == bridge, "it stays while it fits"
    later = renew(room.config, NOW + timedelta(days=4), secrets.token_bytes).serving[0]
    assert later[0] == leaf
    assert later[1].not_valid_after_utc > bridge.not_valid_after_utc, "and is made again before it ends"
    room.apply(*FORWARD[2:])
    assert bridge not in above(room)


def test_an_abort_leaves_the_key_of_the_new_ca_without_a_path(room: Room) -> None:
    room.apply(*FORWARD[:4])
    new_key = load_private_key((room.pki / "rollover/new.key").read_bytes())
    leaked = above(room)
    while step := next_step(room.phase, ABORTED):
        room.apply(step)
    assert is_refused(room, new_key, *leaked)
    assert [one.public_key() for one in read_ca(room.pki).distrusted] == [new_key.public_key()]


def test_the_ca_of_an_aborted_rollover_that_an_administrator_places_again_is_trusted_again(room: Room) -> None:
    company = ThrowawayCA("company", NOW)
    for _ in range(2):
        folder = room.pki / "rollover"
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, data in (("new.crt", company.certificate_pem), ("new.key", private_key_pem(company.key))):
            (folder / name).write_bytes(data)
            (folder / name).chmod(0o600)
        room.apply(*FORWARD[:2])
        assert company.certificate in read_ca(room.pki).trusted
        assert read_ca(room.pki).distrusted == ()
        room.apply(RolloverStep.WITHDRAW, RolloverStep.CLEAN)
        assert read_ca(room.pki).distrusted == (company.certificate,)


@pytest.mark.parametrize("reached", range(1, 5))
def test_a_theft_that_is_noticed_in_the_middle_ends_what_one_ca_says_for_the_other(room: Room, reached: int) -> None:
    room.apply(*FORWARD[:reached])
    assert room.files.read().is_bridged
    room.apply(RolloverStep.UNBRIDGE, compromised=True)
    assert not room.files.read().is_bridged
    assert above(room) == []
    room.apply(*FORWARD[reached:], compromised=True)
    ca = read_ca(room.pki)
    assert (ca.retired, ca.distrusted) == ((), (room.old,))


def test_a_compromised_ca_is_not_kept(room: Room) -> None:
    room.apply(*FORWARD[:4])
    room.apply(RolloverStep.RETIRE, RolloverStep.CLEAN, compromised=True)
    assert read_ca(room.pki).retired == ()
    assert read_ca(room.pki).distrusted == (room.old,)


def test_a_second_rollover_keeps_apart_what_was_retired_and_what_was_stolen(room: Room) -> None:
    stolen = room.old
    room.apply(*FORWARD, compromised=True)
    retired = read_ca(room.pki).authority.certificate
    for turn in range(1, 6):
        for step in FORWARD:
            room.files.apply(step, NOW + timedelta(seconds=turn), secrets.token_bytes)
        ca = read_ca(room.pki)
        assert ca.compromised == (stolen,)
        assert set(ca.distrusted) >= {stolen, retired}
    assert stolen not in certificates((room.pki / "retired-ca.crt").read_bytes())
    assert retired not in certificates((room.pki / "distrusted-ca.crt").read_bytes())


def test_a_stolen_ca_that_is_put_back_into_the_bundle_stands_on_no_path(room: Room) -> None:
    old_key = load_private_key((room.pki / "ca.key").read_bytes())
    room.apply(*FORWARD, compromised=True)
    bundle = room.pki / "ca.crt"
    bundle.write_bytes(bundle.read_bytes() + certificates_pem([room.old]))
    assert is_refused(room, old_key)
    for step in FORWARD:
        room.files.apply(step, NOW + timedelta(seconds=1), secrets.token_bytes)
    assert read_ca(room.pki).compromised == (room.old,)
    assert is_refused(room, old_key)


def test_retired_cas_that_are_kept_no_longer_are_distrusted_for_good(room: Room) -> None:
    for turn in range(6):
        for step in FORWARD:
            room.files.apply(step, NOW + timedelta(seconds=turn), secrets.token_bytes)
    ca = read_ca(room.pki)
    assert (len(ca.retired), len(ca.distrusted)) == (4, 6)
    assert room.old in ca.distrusted


def full_ca(subject: Certificate, issuer: Authority) -> Certificate:
    """Return the certificate by which a CA vouched for another in a rollover of an earlier version: for every use."""
    template = profiles.certificate_authority(accepted_public_key(subject.public_key()), NOW)
    template = replace(template, subject=subject.subject)
    return issuer.sign(template, NOW, serial_number(secrets.token_bytes))


@pytest.mark.parametrize("compromised", [False, True])
def test_a_rollover_of_an_earlier_version_leaves_the_old_key_no_path(room: Room, compromised: bool) -> None:
    old, old_key = read_ca(room.pki).authority, load_private_key((room.pki / "ca.key").read_bytes())
    room.apply(*FORWARD, compromised=compromised)
    new = read_ca(room.pki).authority
    left, home = full_ca(old.certificate, new), full_ca(new.certificate, old)
    (room.pki / "cross-signed.crt").write_bytes(certificates_pem([left, home]))
    (room.pki / "distrusted-ca.crt").unlink(missing_ok=True)  # that version remembered no compromised CA
    ca = read_ca(room.pki)
    assert ca.cross_signed == (home,), "machines that were off come back by it"
    assert ca.retired == (() if compromised else (room.old,))
    assert is_refused(room, old_key, left)
    room.files.apply(RolloverStep.PREPARE, NOW + timedelta(seconds=1), secrets.token_bytes)
    assert left not in certificates((room.pki / "cross-signed.crt").read_bytes())
    assert is_refused(room, old_key, left), "it is remembered once the file is written again"


def test_a_rollover_that_an_earlier_version_ended_leaves_a_compromised_key_no_path(room: Room) -> None:
    old, old_key = read_ca(room.pki).authority, load_private_key((room.pki / "ca.key").read_bytes())
    room.apply(*FORWARD, compromised=True)
    seen = full_ca(old.certificate, read_ca(room.pki).authority)  # each client got it from the server
    home = full_ca(read_ca(room.pki).authority.certificate, old)
    (room.pki / "cross-signed.crt").write_bytes(certificates_pem([home]))
    (room.pki / "distrusted-ca.crt").unlink()
    assert is_refused(room, old_key, seen)
    for turn in range(3):
        for step in FORWARD:
            room.files.apply(step, NOW + timedelta(seconds=1 + turn), secrets.token_bytes)
            assert is_refused(room, old_key, seen), "the CA that vouched for it is retired at last"


def test_a_ca_that_an_administrator_placed_is_used_and_further_cas_stay(room: Room) -> None:
    company, other = ThrowawayCA("company", NOW), ThrowawayCA("other", NOW).certificate
    (room.pki / "ca.crt").write_bytes(certificates_pem([room.old, other]))
    folder = room.pki / "rollover"
    folder.mkdir(mode=0o700)
    for name, data in (("new.crt", company.certificate_pem), ("new.key", private_key_pem(company.key))):
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    room.apply(*FORWARD)
    assert read_ca(room.pki).trusted == (company.certificate, other)
    assert read_ca(room.pki).authority.certificate == company.certificate


def test_two_rollovers_later_a_client_of_the_first_ca_verifies_the_server(room: Room) -> None:
    room.apply(*FORWARD)
    later = NOW + timedelta(seconds=5)
    for step in FORWARD:
        room.files.apply(step, later, secrets.token_bytes)
    assert room.verifies(room.old)
    assert [one.subject for one in read_ca(room.pki).retired][1:] == [room.old.subject]


def test_a_rollover_of_another_ca_is_refused(room: Room) -> None:
    room.apply(RolloverStep.PREPARE)
    stranger = ThrowawayCA("stranger", NOW)
    (room.pki / "ca.crt").write_bytes(stranger.certificate_pem)
    (room.pki / "ca.key").write_bytes(private_key_pem(stranger.key))
    with pytest.raises(ConfigError, match="belongs to another CA"):
        room.files.read()
    with pytest.raises(ConfigError, match="belongs to another rollover"):
        room.apply(RolloverStep.PREPARE)


def test_the_files_of_an_abort_that_are_left_are_removed(room: Room) -> None:
    room.apply(RolloverStep.PREPARE)
    (room.pki / "rollover/old.key").unlink()
    assert room.phase == CLEANING
    room.apply(RolloverStep.CLEAN)
    assert room.phase == ABSENT
    room.apply(RolloverStep.CLEAN)


def test_a_file_that_cannot_be_read_is_named(room: Room) -> None:
    room.apply(RolloverStep.PREPARE)
    (room.pki / "rollover/new.crt").write_bytes(b"oops")
    with pytest.raises(ConfigError, match=r"rollover/new\.crt"):
        room.files.read()
    (room.pki / "rollover/new.crt").write_bytes(certificates_pem(certificates((room.pki / "ca.crt").read_bytes())[:1]))
    (room.pki / "rollover/new.key").write_bytes(private_key_pem(generate_key()))
    with pytest.raises(ConfigError, match="does not belong to its certificate"):
        room.files.read()
