"""`mooring datastore k3s-bootstrap`: a cluster moves from a datastore of k3s, and back."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.bundles import certificates
from mooring.secret import Secret
from mooring.storage.sqlite import kine
from mooring.trust.sharedkeys.k3sbootstrapdata import EMPTY_KEY, PREFIX, BootstrapFile, open_rows, row_key, seal_row
from tests.support import etcd
from tests.support.commandline import CommandLine, mooring
from tests.support.testca import by_library

__all__ = ["mooring"]
PASSWORD = "0123456789abcdef0123456789abcdef"
TOKEN = f"K10{'0' * 64}::server:{PASSWORD}"
SECRETS = ["PRIVATE", PASSWORD, "psk-of-ipsec"]
CHANGED = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def cluster() -> dict[str, BootstrapFile]:
    """Return the files of a k3s cluster."""
    content = {
        "ServiceKey": private_key_pem(generate_key()),
        "IPSECKey": b"psk-of-ipsec\n",
        "PasswdFile": b"x,node\n",
    }
    for number, name in enumerate(("ServerCA", "ClientCA", "RequestHeaderCA", "ETCDServerCA", "ETCDPeerCA")):
        key = generate_key()
        content[name] = self_signed_ca(key, f"k3s-{name}@1", SystemClock().now(), number + 1).certificate_pem
        content[f"{name}Key"] = private_key_pem(key)
    return {name: BootstrapFile(Secret(data), CHANGED) for name, data in content.items()}


FILES = cluster()


@pytest.fixture
def k3s(tmp_path: Path) -> Path:
    """The data directory of a k3s server."""
    (tmp_path / "k3s/server/db").mkdir(parents=True)
    server = tmp_path / "k3s/server"
    kine.create_key(server / "db/state.db", *seal_row(FILES, Secret(PASSWORD), os.urandom), refused=PREFIX)
    (server / "token").write_text(TOKEN + "\n")
    return server


def source(k3s: Path) -> str:
    return f"sqlite:{k3s}/db/state.db"


def test_show_lists_files_without_their_content(k3s: Path, mooring: CommandLine) -> None:
    said = mooring("datastore", "k3s-bootstrap", "show", source(k3s))
    assert said.code == 0, said.err
    assert "CN=k3s-ServerCA@1 sha256:" in said.out
    assert "2024-05-06T07:08:09Z" in said.out
    assert not [one for one in SECRETS if one in said.all]
    document = json.loads(mooring.done("datastore", "k3s-bootstrap", "show", source(k3s), "-o", "json"))
    assert {one["name"] for one in document["files"]} == FILES.keys()
    assert document["key"] == row_key(Secret(PASSWORD))
    assert not [one for one in SECRETS if one in json.dumps(document)]


def test_import_gives_a_data_directory_with_which_a_server_starts(
    k3s: Path, tmp_path: Path, mooring: CommandLine
) -> None:
    root = tmp_path / "mooring"
    said = mooring("datastore", "k3s-bootstrap", "import", source(k3s), "--data-dir", str(root))
    assert said.code == 0, said.err
    assert not [one for one in SECRETS if one in said.all]
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()} == {0o600}
    assert certificates((root / "pki/ca.crt").read_bytes()) == tuple(
        certificates(FILES[name].content.reveal())[0] for name in ("ServerCA", "ClientCA")
    )
    assert (root / "k3s/tls/etcd/peer-ca.key").read_bytes() == FILES["ETCDPeerCAKey"].content.reveal()
    mooring.done("datastore", "k3s-bootstrap", "import", source(k3s), "--data-dir", str(root))  # again, as after a kill
    mooring.done("init", "--data-dir", str(root), "--bind-address", "127.0.0.1", "--token", "")
    serving = certificates((root / "pki/apiserver.crt").read_bytes())[0]
    by_library(serving).verify_directly_issued_by(by_library(certificates(FILES["ServerCA"].content.reveal())[0]))
    assert (root / "server/token").read_text().strip().endswith(PASSWORD)

    back = tmp_path / "back.db"
    said = mooring(
        "datastore", "k3s-bootstrap", "export", f"sqlite:{back}", "--data-dir", str(root), "--token", TOKEN
    )  # fmt: skip
    assert said.code == 0, said.err
    assert not [one for one in SECRETS if one in said.all]
    exported = open_rows(kine.read_prefix(back, PREFIX), Secret(PASSWORD)).files
    assert certificates(exported["ServerCA"].content.reveal())[0] == certificates(FILES["ServerCA"].content.reveal())[0]
    for name in FILES.keys() - {"ServerCA", "PasswdFile"}:
        assert exported[name].content == FILES[name].content, name
    again = mooring("datastore", "k3s-bootstrap", "export", f"sqlite:{back}", "--data-dir", str(root), "--token", TOKEN)
    assert (again.code, again.err.count("\n")) == (1, 1)
    assert "nothing is overwritten" in again.err


def test_a_cluster_that_never_was_k3s_is_exported_with_new_cas(tmp_path: Path, mooring: CommandLine) -> None:
    root, target = tmp_path / "own", tmp_path / "state.db"
    mooring.done("init", "--data-dir", str(root), "--bind-address", "127.0.0.1", "--token", "")
    mooring.done(
        "datastore", "k3s-bootstrap", "export", f"sqlite:{target}", "--data-dir", str(root), "--token", PASSWORD
    )  # fmt: skip
    files = open_rows(kine.read_prefix(target, PREFIX), Secret(PASSWORD)).files
    assert files["ServerCA"].content.reveal() == (root / "pki/ca.crt").read_bytes()
    for name in ("RequestHeaderCA", "ETCDServerCA", "ETCDPeerCA"):
        assert certificates(files[name].content.reveal())[0].subject.rfc4514_string().startswith(f"CN=k3s-{name}@")
        assert files[f"{name}Key"].changed is not None


def test_import_overwrites_nothing(k3s: Path, tmp_path: Path, mooring: CommandLine) -> None:
    root = tmp_path / "own"
    mooring.done("init", "--data-dir", str(root), "--bind-address", "127.0.0.1", "--token", "")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "mooring.db" not in path.name}
    said = mooring("datastore", "k3s-bootstrap", "import", source(k3s), "--data-dir", str(root))
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert "nothing is overwritten: name a new --data-dir" in said.err
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "mooring.db" not in path.name}
    assert after == before


REFUSED = {
    "another token": (["--token", "f" * 32], 1, "of another token"),
    "a bootstrap token": (["--token", "abcdef.0123456789abcdef"], 1, "this is a bootstrap token"),
    "half of a token": (["--token", "K10abc::x:y"], 1, "invalid token CA hash length"),
}


@pytest.mark.parametrize(("flags", "code", "reason"), REFUSED.values(), ids=REFUSED)
def test_tokens_that_do_not_open(
    k3s: Path, tmp_path: Path, mooring: CommandLine, flags: list[str], code: int, reason: str
) -> None:
    root = tmp_path / "none"
    said = mooring("datastore", "k3s-bootstrap", "import", source(k3s), "--data-dir", str(root), *flags)
    assert (said.code, said.err.count("\n")) == (code, 1)
    assert reason in said.err
    assert not (root / "pki").exists()


def test_places_that_are_none(tmp_path: Path, mooring: CommandLine) -> None:
    for place, code, reason in (
        ("/var/lib/state.db", 2, "name the datastore as sqlite:"),
        (f"sqlite:{tmp_path}/missing.db", 1, "give --token-file"),
    ):
        said = mooring("datastore", "k3s-bootstrap", "show", place)
        assert (said.code, reason in said.err) == (code, True), said.err
    file = tmp_path / "token"
    file.write_text(TOKEN)
    said = mooring("datastore", "k3s-bootstrap", "show", f"sqlite:{tmp_path}/missing.db", "--token-file", str(file))
    assert (said.code, "is not there" in said.err) == (1, True)
    both = ("--token-file", str(file), "--token", "another")
    said = mooring("datastore", "k3s-bootstrap", "show", f"sqlite:{tmp_path}/missing.db", *both)
    assert (said.code, "give --token or --token-file, not both" in said.err) == (2, True)


def test_a_row_of_the_empty_passphrase_is_shown_with_a_warning(tmp_path: Path, mooring: CommandLine) -> None:
    path = tmp_path / "state.db"
    vectors = Path(__file__).parents[1] / "vectors/trust/k3sbootstrapdata.json"
    legacy = json.loads(vectors.read_bytes())["vectors"][-1]
    kine.create_key(path, EMPTY_KEY, legacy["value"].encode(), refused=PREFIX)
    said = mooring("datastore", "k3s-bootstrap", "show", f"sqlite:{path}", "--token", PASSWORD)
    assert said.code == 0
    assert "Warning: the passphrase is empty (CVE-2021-32001)" in said.err
    assert "not a certificate" in said.out


def test_a_short_token_of_k3s_is_not_taken(tmp_path: Path, mooring: CommandLine) -> None:
    path, root = tmp_path / "state.db", tmp_path / "data"
    kine.create_key(path, *seal_row(FILES, Secret("short"), os.urandom), refused=PREFIX)
    said = mooring(
        "datastore", "k3s-bootstrap", "import", f"sqlite:{path}", "--data-dir", str(root), "--token", "short"
    )
    assert said.code == 0
    assert "less than 16 characters and was not taken" in said.err
    assert not (root / "server/token").exists()


@pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING)
def test_a_datastore_in_etcd_is_written_once_and_read(tmp_path: Path, mooring: CommandLine) -> None:
    root = tmp_path / "own"
    mooring.done("init", "--data-dir", str(root), "--bind-address", "127.0.0.1", "--token", "")
    (tmp_path / "etcd").mkdir()
    with etcd.running(tmp_path / "etcd") as members:
        place = [f"etcd:{members.endpoints}", "--token", PASSWORD]
        mooring.done("datastore", "k3s-bootstrap", "export", *place, "--data-dir", str(root))
        assert "CN=kubernetes sha256:" in mooring.done("datastore", "k3s-bootstrap", "show", *place)
        again = mooring("datastore", "k3s-bootstrap", "export", *place, "--data-dir", str(root))
        assert (again.code, "nothing is overwritten" in again.err) == (1, True)
