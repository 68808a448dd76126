"""Keys of a k3s cluster as those of a Mooring cluster, and back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, private_key_pem, public_key_der
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.bundles import certificates, certificates_pem, load_public_keys
from mooring.secret import Secret
from mooring.trust.sharedkeys.k3sbootstrapdata import FILES, NAMES, BootstrapFile, bootstrap_files, keys_of
from mooring.trust.sharedkeys.keyset import SharedKeySet

NOW = datetime(2026, 3, 1, tzinfo=UTC)
KEYS = [generate_key() for _ in range(4)]
SERVER, CLIENT = (self_signed_ca(KEYS[number], f"k3s-{number}", NOW, number + 1) for number in range(2))
FIRST, SECOND = KEYS[2], KEYS[3]


def k3s(**changed: bytes | None) -> dict[str, BootstrapFile]:
    content = {
        "ServerCA": SERVER.certificate_pem,
        "ServerCAKey": private_key_pem(KEYS[0]),
        "ClientCA": CLIENT.certificate_pem,
        "ClientCAKey": private_key_pem(KEYS[1]),
        "ServiceKey": private_key_pem(FIRST) + private_key_pem(SECOND),
        "PasswdFile": b"secret,node,node,k3s:agent\n",
        **changed,
    }
    return {name: BootstrapFile(Secret(data)) for name, data in content.items() if data is not None}


def test_the_ca_of_servers_issues_and_that_of_clients_is_trusted() -> None:
    keys = keys_of(k3s())
    assert certificates(keys.files["ca.crt"].reveal()) == (SERVER.certificate, CLIENT.certificate)
    assert keys.files["ca.key"] == Secret(private_key_pem(KEYS[0]))


def test_the_first_key_of_service_accounts_signs_and_all_verify() -> None:
    keys = keys_of(k3s())
    assert keys.files["sa.key"] == Secret(private_key_pem(FIRST))
    verifying = [public_key_der(one) for one in load_public_keys(keys.files["sa.pub"].reveal())]
    assert verifying == [public_key_der(FIRST), public_key_der(SECOND)]


def test_one_ca_for_both_is_trusted_once() -> None:
    keys = keys_of(k3s(ClientCA=SERVER.certificate_pem))
    assert certificates(keys.files["ca.crt"].reveal()) == (SERVER.certificate,)


REFUSED: dict[str, tuple[dict[str, bytes | None], str]] = {
    "no key of the servers' CA": ({"ServerCAKey": None}, "has no ServerCAKey"),
    "an empty file": ({"ServiceKey": b""}, "has no ServiceKey"),
    "a CA that is none": ({"ClientCA": b"x"}, "^ClientCA: "),
    "a key that is none": ({"ServerCAKey": b"x"}, "^ServerCAKey: "),
    "keys of service accounts that are none": ({"ServiceKey": b"x"}, "^ServiceKey: "),
    "the key of another CA": ({"ServerCAKey": private_key_pem(SECOND)}, "ca.crt: "),
}


@pytest.mark.parametrize(("changed", "reason"), REFUSED.values(), ids=REFUSED)
def test_rows_that_are_no_whole_cluster(changed: dict[str, bytes | None], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        keys_of(k3s(**changed))


def test_what_was_imported_comes_back() -> None:
    before = k3s()
    after = bootstrap_files(keys_of(before), before)
    assert certificates(after["ServerCA"].content.reveal())[0] == SERVER.certificate
    assert {name: after[name] for name in ("ServerCAKey", "ClientCA", "ClientCAKey")} == {
        name: before[name] for name in ("ServerCAKey", "ClientCA", "ClientCAKey")
    }
    assert "PasswdFile" not in after, "k3s makes it from its token"


def test_the_ca_that_issues_comes_first() -> None:
    both = certificates_pem([CLIENT.certificate, SERVER.certificate])
    keys = SharedKeySet.of(
        {
            "ca.crt": Secret(both),
            "ca.key": Secret(private_key_pem(KEYS[0])),
            "sa.key": Secret(private_key_pem(FIRST)),
        }
    )
    made = bootstrap_files(keys, {})
    assert certificates(made["ServerCA"].content.reveal()) == (SERVER.certificate, CLIENT.certificate)
    assert (made["ClientCA"], made["ClientCAKey"]) == (made["ServerCA"], made["ServerCAKey"])


def test_keys_without_that_of_service_accounts_are_refused() -> None:
    keys = SharedKeySet.of({"ca.crt": Secret(SERVER.certificate_pem), "ca.key": Secret(private_key_pem(KEYS[0]))})
    with pytest.raises(ConfigError, match=r"sa\.key is missing"):
        bootstrap_files(keys, {})


def test_every_file_of_k3s_has_a_place() -> None:
    assert FILES.keys() == set(NAMES)
