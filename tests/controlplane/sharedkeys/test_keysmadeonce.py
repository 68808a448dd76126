"""Starts on a store that has a cluster, while its keys or some of them are missing or of another cluster, as a table.

Keys are made on an empty store alone. A start that is refused changes nothing in the data directory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.api.core.configmap import KIND as CONFIG_MAPS
from mooring.api.core.namespace import KIND as NAMESPACES
from mooring.apimachinery.codec.protobuf import encode_envelope, encode_message
from mooring.client.files import write_atomic
from mooring.controlplane import keystore
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.encryption import EncryptionAtRest
from mooring.controlplane.keystore import make_shared_keys, prepare
from mooring.controlplane.sharedkeys import files
from mooring.controlplane.sharedkeys.start import prepare_keys
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import load_private_key
from mooring.pki.x509.bundles import load_public_keys
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.storage.drivers import open_storage
from mooring.storage.etcd.keyspace import name_in_engine
from mooring.trust.discovery.clusterinfo import config_map as cluster_info
from mooring.trust.discovery.pins import pins_of
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.envelope import KEY
from mooring.trust.sharedkeys.reconciliation import MADE_ONCE
from tests.support import encryption
from tests.support.manualclock import ManualClock

TOKEN = "0123456789abcdef0123456789abcdef"
CLOCK = ManualClock()


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "N", 16)


class Cluster:
    """A server, its data directory and its store, which stands somewhere."""

    def __init__(self, root: Path, name: str, where: str) -> None:
        self.data, self.where = root / name, where
        self.url = f"sqlite:{self.data if where == 'in the data directory' else root / f'{name}-store'}/mooring.db"
        (root / f"{name}-store").mkdir()

    def config(self, **more: str) -> ServerConfig:
        flags = {"shared_keys": "files"} if self.where == "elsewhere, keys as files" else {}
        settings = {"data_dir": str(self.data), "storage": self.url, **flags, **more}
        return server_config(detected_addresses=("192.0.2.1",), **settings)

    def start(self, *, new_keys: bool = False, **more: str) -> dict[str, bytes]:
        prepare_keys(self.config(**more), CLOCK, os.urandom, new_keys=new_keys)
        return self.files()

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.data)): path.read_bytes() for path in self.data.rglob("pki/*")}

    @property
    def pin(self) -> str:
        return str(pins_of((self.data / "pki/ca.crt").read_bytes())[0])

    def lose(self, *names: str) -> None:
        for name in names:
            (self.data / "pki" / name).unlink()

    def lose_pki(self) -> None:
        shutil.rmtree(self.data / "pki")

    def put(self, objects: dict[str, bytes], *, without_row: bool = False) -> None:
        """Write values into the store."""

        async def work() -> None:
            storage = open_storage(self.url, CLOCK)
            await storage.open()
            for key, value in objects.items():
                await storage.create(key, value)
            if without_row and (row := await storage.get(KEY)) is not None:
                await storage.delete(KEY, expected=row.revision)
            await storage.close()

        asyncio.run(work())

    def row(self) -> envelope.SharedKeysRow | None:
        async def work() -> envelope.SharedKeysRow | None:
            storage = open_storage(self.url, CLOCK)
            await storage.open()
            entry = await storage.get(KEY)
            await storage.close()
            return envelope.decode(entry.value) if entry is not None else None

        return asyncio.run(work())


KEPT = ("in the data directory", "elsewhere, keys as files")
SEALED = "elsewhere, sealed"


def refused(cluster: Cluster, **more: str) -> str:
    """Start, and return the one line of the refusal, which changed no key."""
    before = cluster.files()
    with pytest.raises(ConfigError) as raised:
        cluster.start(new_keys=False, **more)
    assert cluster.files() == before
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ── keys that are missing ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize(
    "names", [("sa.key",), ("lineage.key",), ("ca.crt",), ("sa.key", "lineage.key")], ids=", ".join
)
def test_a_missing_key_of_a_server_that_keeps_them_is_named(tmp_path: Path, where: str, names: tuple[str, ...]) -> None:
    cluster = Cluster(tmp_path, "a", where)
    before, pin = cluster.start(), cluster.pin
    cluster.lose(*names)
    said = refused(cluster)
    assert said.startswith(f"{', '.join(names)} of the cluster of the CA {pin}, which the store holds, ")
    assert str(cluster.data / "pki") in said
    assert "backup" in said
    for name in names:  # the way back
        (cluster.data / "pki" / name).write_bytes(before[f"pki/{name}"])
    assert cluster.start() == before


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize("with_records", [True, False], ids=["server/ is there", "server/ is gone, too"])
def test_a_store_without_its_pki_is_refused(tmp_path: Path, where: str, with_records: bool) -> None:
    cluster = Cluster(tmp_path, "a", where)
    before, pin, row = cluster.start(), cluster.pin, cluster.row()
    shutil.copytree(cluster.data / "pki", tmp_path / "backup")
    cluster.lose_pki()
    if not with_records:
        shutil.rmtree(cluster.data / "server")
    assert refused(cluster).startswith(f"{', '.join(MADE_ONCE)} of the cluster of the CA {pin}, ")
    assert not (cluster.data / "pki").exists()
    assert cluster.row() == row
    shutil.copytree(tmp_path / "backup", cluster.data / "pki")
    assert cluster.start() == before


@pytest.mark.parametrize("name", [*MADE_ONCE, "pki"])
def test_what_is_sealed_in_the_store_comes_back_from_there(tmp_path: Path, name: str) -> None:
    cluster = Cluster(tmp_path, "a", SEALED)
    before = cluster.start()
    if name == "pki":
        cluster.lose_pki()
    else:
        cluster.lose(name)
    after = cluster.start()
    assert {key: after[f"pki/{key}"] for key in MADE_ONCE} == {key: before[f"pki/{key}"] for key in MADE_ONCE}


def test_sealed_keys_whose_token_is_lost_are_not_made_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", SEALED)
    cluster.start()
    shutil.rmtree(cluster.data)
    for settings in ({}, {"shared_keys": "files"}):
        assert "give --server-token-file" in refused(cluster, **settings)
    with pytest.raises(ConfigError, match="give --server-token-file"):
        cluster.start(new_keys=True)


def test_a_server_in_its_data_directory_that_gets_a_token_makes_no_other_key(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    cluster.start()
    cluster.lose("sa.key")
    assert refused(cluster, server_token=TOKEN).startswith("sa.key of the cluster ")


def test_a_key_in_place_of_which_a_flag_names_another_may_be_missing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    cluster.start()
    shutil.copy(cluster.data / "pki/sa.key", tmp_path / "sa.key")
    cluster.lose("sa.key", "sa.pub")
    assert "pki/sa.key" not in cluster.start(service_account_signing_key_file=str(tmp_path / "sa.key"))
    assert "pki/sa.key" in cluster.start()  # the cluster had none: it is made


def test_serving_certificates_and_public_keys_are_made_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    before = cluster.start()
    cluster.lose("apiserver.key", "apiserver.crt", "sa.pub", "lineage.pub")
    after = cluster.start()
    assert {name for name in before if before[name] != after[name]} == {"pki/apiserver.key", "pki/apiserver.crt"}


# ── two halves of two clusters ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", [*KEPT, SEALED])
@pytest.mark.parametrize("parts", [("pki",), ("pki", "server")], ids=["pki", "pki and server"])
def test_the_pki_of_one_cluster_with_the_store_of_another_is_refused(
    tmp_path: Path, where: str, parts: tuple[str, ...]
) -> None:
    one, other = Cluster(tmp_path, "one", where), Cluster(tmp_path, "other", where)
    one.start()
    other.start()
    pin, row = one.pin, one.row()
    for part in parts:
        shutil.rmtree(one.data / part)
        shutil.copytree(other.data / part, one.data / part)
    said = refused(one)
    assert f"the CA in {one.data}/pki is {other.pin}, and the CA of the cluster in this store is {pin}" in said
    with pytest.raises(ConfigError, match=f"is {pin}"):
        one.start(new_keys=True)
    assert one.row() == row


# ── a store without a record of its keys ──────────────────────────────────────────────────────────────────────────


def config_map(namespace: str, name: str, data: dict[str, str]) -> dict[str, bytes]:
    obj = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": namespace}, "data": data}
    return {CONFIG_MAPS.key(namespace, name): json.dumps(obj).encode()}


def in_protobuf(objects: dict[str, bytes]) -> dict[str, bytes]:
    """Return values as kube-apiserver writes them."""
    schema = CONFIG_MAPS.resource.schema
    return {
        key: encode_envelope("v1", "ConfigMap", encode_message(json.loads(value), schema))
        for key, value in objects.items()
    }


KUBE_SYSTEM = {NAMESPACES.key("", "kube-system"): b'{"kind":"Namespace","apiVersion":"v1"}'}
EVIDENCE: dict[str, Callable[[str], dict[str, bytes]]] = {
    "client-ca-file": lambda ca: config_map(
        "kube-system", "extension-apiserver-authentication", {"client-ca-file": ca}
    ),
    "client-ca-file in protobuf": lambda ca: in_protobuf(
        config_map("kube-system", "extension-apiserver-authentication", {"client-ca-file": ca})
    ),
    "kube-root-ca.crt": lambda ca: config_map("kube-system", "kube-root-ca.crt", {"ca.crt": ca}),
    "cluster-info": lambda ca: config_map(
        "kube-public", "cluster-info", cluster_info("https://192.0.2.1:6443", ca.encode())["data"]
    ),
    "cluster-info, for clients": lambda ca: config_map(
        "kube-public",
        "cluster-info",
        cluster_info("https://192.0.2.1:6443", OTHER_CA.encode(), client_ca_pem=ca.encode())["data"],
    ),
}
OTHER_CA = ""


def ca_of(root: Path) -> str:
    """Return the CA of another server."""
    config = server_config(data_dir=str(root), detected_addresses=("192.0.2.1",))
    prepare(config, CLOCK.now(), os.urandom)
    return (root / "pki/ca.crt").read_text()


@pytest.fixture(autouse=True)
def _other_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OTHER_CA", ca_of(tmp_path / "third"))


@pytest.mark.parametrize("where", [*KEPT, SEALED])
@pytest.mark.parametrize("evidence", EVIDENCE.values(), ids=EVIDENCE)
def test_a_store_without_a_record_is_adopted_with_its_ca_and_refused_without(
    tmp_path: Path,
    where: str,
    evidence: Callable[[str], dict[str, bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(tmp_path, "a", where)
    make_shared_keys(cluster.config(), cluster.data, CLOCK.now(), os.urandom)
    caplog.set_level(logging.INFO)
    shutil.copytree(cluster.data / "pki", tmp_path / "its-keys")
    cluster.put({**KUBE_SYSTEM, **evidence((cluster.data / "pki/ca.crt").read_text())})
    pin = cluster.pin
    cluster.lose_pki()
    assert refused(cluster).startswith("ca.crt, ca.key, sa.key of the cluster of the CA ")
    make_shared_keys(cluster.config(), cluster.data, CLOCK.now(), os.urandom)
    assert f"the CA in {cluster.data}/pki is {cluster.pin}, and the objects in this store are of a cluster" in refused(
        cluster
    )
    shutil.rmtree(cluster.data / "pki")
    shutil.copytree(tmp_path / "its-keys", cluster.data / "pki")
    cluster.lose("lineage.key", "lineage.pub")  # a kube-apiserver has none
    cluster.start()
    assert f"the CA {pin} in {cluster.data}/pki is recorded, which its objects name" in caplog.text
    row = cluster.row()
    assert row is not None
    assert row.authorities == (pin,)


def test_a_store_whose_objects_name_no_ca_is_adopted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster(tmp_path, "a", "in the data directory")
    cluster.start()
    cluster.put(KUBE_SYSTEM, without_row=True)
    cluster.start()
    assert "and its objects name none" in caplog.text
    assert cluster.row() is not None


def test_a_ca_for_clients_that_a_flag_names_is_of_the_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    cluster.start()
    cluster.put({**KUBE_SYSTEM, **EVIDENCE["client-ca-file"](OTHER_CA)}, without_row=True)
    assert "are of a cluster with the CA" in refused(cluster)
    cluster.start(client_ca_file=str(tmp_path / "third/pki/ca.crt"))


@pytest.mark.parametrize("value", ["no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_ca_that_cannot_be_read_is_no_evidence(tmp_path: Path, value: str) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    cluster.start()
    cluster.put({**KUBE_SYSTEM, **EVIDENCE["client-ca-file"](value)}, without_row=True)
    assert "extension-apiserver-authentication in the store names no CA that can be read" in refused(cluster)


def test_a_ca_that_is_encrypted_at_rest_is_read(tmp_path: Path) -> None:
    cluster, file = Cluster(tmp_path, "a", "in the data directory"), tmp_path / "encryption.json"
    file.write_bytes(encryption.file(encryption.entry("configmaps", encryption.local("aesgcm", "key1"))))
    file.chmod(0o600)
    config = cluster.config(encryption_provider_config=str(file))
    cluster.start()

    async def put() -> None:
        settings, context = config[EncryptionSettings], name_in_engine(config[StorageSettings])
        inner = open_storage(cluster.url, CLOCK)
        storage = EncryptionAtRest(settings, inner, CLOCK, os.urandom, context).storage
        await storage.open()
        for key, value in EVIDENCE["client-ca-file"](OTHER_CA).items():
            await storage.create(key, value)
        await storage.close()

    asyncio.run(put())
    cluster.put(KUBE_SYSTEM, without_row=True)
    said = refused(cluster, encryption_provider_config=str(file))
    assert f"of a cluster with the CA {pins_of(OTHER_CA.encode())[0]}" in said
    with pytest.raises(MooringError) as raised:  # without the keys of the encryption nothing is adopted
        cluster.start()
    assert "\n" not in str(raised.value)
    assert cluster.row() is None


# ── new keys on purpose ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize("has_row", [True, False], ids=["with a record", "without a record"])
def test_a_person_may_ask_for_new_keys(tmp_path: Path, where: str, has_row: bool) -> None:
    cluster = Cluster(tmp_path, "a", where)
    before, pin = cluster.start(), cluster.pin
    ca = (cluster.data / "pki/ca.crt").read_text()
    if not has_row:
        cluster.put({**KUBE_SYSTEM, **EVIDENCE["client-ca-file"](ca)}, without_row=True)
    cluster.lose_pki()
    refused(cluster)
    after = cluster.start(new_keys=True)
    assert not set(before.values()) & set(after.values())
    assert cluster.pin != pin
    row = cluster.row()
    assert row is not None
    assert row.authorities == (cluster.pin,)
    assert cluster.start() == after  # without the flag


def test_new_keys_leave_those_that_are_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    before = cluster.start()
    assert cluster.start(new_keys=True) == before
    cluster.lose("sa.key", "lineage.key")
    after = cluster.start(new_keys=True)
    assert {name for name in before if before[name] != after[name]} == {
        "pki/sa.key",
        "pki/lineage.key",
        "pki/lineage.pub",
    }
    old, new = load_public_keys(after["pki/lineage.pub"])  # records of before are still verified
    assert (old,) == load_public_keys(before["pki/lineage.pub"])
    assert new == load_private_key(after["pki/lineage.key"]).public_key()


def test_the_certificate_of_the_ca_without_its_key_is_not_overwritten(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    cluster.start()
    cluster.lose("ca.key")
    with pytest.raises(ConfigError, match=r"ca.crt is there but .*ca.key is missing; restore the key from a backup"):
        cluster.start(new_keys=True)


class KilledError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("first", [1, 2, 3], ids=["every third write", "the writes after it", "the writes before it"])
def test_new_keys_that_are_killed_at_any_write_are_completed(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(first, 40, 3):
        cluster, count = Cluster(tmp_path, f"a{number}", "in the data directory"), 0
        cluster.start()
        cluster.lose_pki()

        def killed(write: Callable[[Path, bytes], None], number: int = number) -> Callable[[Path, bytes], None]:
            def written(path: Path, data: bytes) -> None:
                nonlocal count
                count += 1
                if count == number:
                    raise KilledError
                write(path, data)

            return written

        ended = True
        with monkeypatch.context() as patched:
            for module in (files, keystore):
                patched.setattr(module, "write_atomic", killed(write_atomic))
            try:
                cluster.start(new_keys=True)
            except KilledError:
                ended = False
        try:
            cluster.start()
        except ConfigError:  # not all were made: the flag again
            cluster.start(new_keys=True)
        row = cluster.row()
        assert row is not None
        assert row.authorities == (cluster.pin,)
        assert cluster.start() == cluster.files()
        if ended:
            break
    assert number > len(MADE_ONCE)


def test_a_first_start_that_is_killed_at_any_write_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 40):
        cluster, count, ended = Cluster(tmp_path, f"a{number}", "in the data directory"), 0, True

        def written(path: Path, data: bytes, number: int = number) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise KilledError
            write_atomic(path, data)

        with monkeypatch.context() as patched:
            patched.setattr(keystore, "write_atomic", written)
            patched.setattr(files, "write_atomic", written)
            try:
                cluster.start()
            except KilledError:
                ended = False
        kept = cluster.files()
        after = cluster.start()
        assert {name: after[name] for name in kept} == kept
        if ended:
            break
    assert number > len(MADE_ONCE)


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "sa.key", "lineage.key", "lineage.pub"])
def test_a_damaged_key_is_named_and_stays(tmp_path: Path, name: str) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    cluster.start()
    (cluster.data / "pki" / name).write_bytes(b"garbage")
    said = refused(cluster)
    assert said.startswith(f"{cluster.data}/pki/{name}: ")
    assert said.endswith("; restore it from a backup")


def test_no_key_is_written_where_others_could_replace_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "in the data directory")
    (cluster.data / "pki").mkdir(parents=True)
    (cluster.data / "pki").chmod(0o777)
    assert "can be changed by other users" in refused(cluster)
    assert cluster.files() == {}
