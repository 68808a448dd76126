"""Files of the shared keys: a server that is killed at any write can load what is there, and ends in the same state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from mooring.client.files import write_atomic
from mooring.controlplane.datadirectory import read_ca
from mooring.controlplane.sharedkeys import files
from mooring.controlplane.sharedkeys.files import RECORD, FilesRecord, SharedKeyFiles
from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.bundles import certificates_pem
from mooring.secret import Secret
from mooring.trust.sharedkeys.keyset import NAMES, SharedKeySet
from mooring.trust.sharedkeys.reconciliation import Agreed
from tests.support.manualclock import EPOCH


class KilledError(BaseException):
    """Plays `kill -9`."""


@cache
def ca(number: int) -> tuple[Authority, bytes]:
    key = generate_key()
    return self_signed_ca(key, f"ca-{number}", EPOCH, number), private_key_pem(key)


def key_set(issuing: int, *trusted: int, **more: int) -> SharedKeySet:
    """Return the keys of a cluster whose CA `issuing` issues; `more` are files of a rollover, by the CA that they are of."""
    bundle = certificates_pem([ca(number)[0].certificate for number in (issuing, *trusted)])
    content = {"ca.crt": bundle, "ca.key": ca(issuing)[1], "lineage.key": ca(9)[1]}
    for name, number in more.items():
        content[f"rollover/{name}.crt"] = ca(number)[0].certificate_pem
        content[f"rollover/{name}.key"] = ca(number)[1]
    return SharedKeySet.of({name: Secret(data) for name, data in content.items()})


ALONE, BOTH, NEXT = key_set(1), key_set(1, 2, old=1, new=2), key_set(2, 1, old=1, new=2)
CHANGES = {
    "a new data directory": (None, BOTH),
    "a rollover begins": (ALONE, BOTH),
    "another CA issues": (BOTH, NEXT),
    "a rollover ends": (NEXT, key_set(2)),
    "a server missed a whole rollover": (ALONE, key_set(2)),
}


def agreed(generation: int, keys: SharedKeySet) -> Agreed:
    return Agreed("c", generation, keys.fingerprint)


def content(data_dir: Path) -> dict[str, bytes]:
    return {name: (data_dir / "pki" / name).read_bytes() for name in NAMES if (data_dir / "pki" / name).exists()}


def kill_before(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], int]:
    """Kill the process before the write, or removal, of this number. Return a function that returns how many there were."""
    count, write, unlink = 0, write_atomic, Path.unlink

    def counted() -> None:
        nonlocal count
        count += 1
        if count == number:
            raise KilledError

    def write_or_die(path: Path, data: bytes) -> None:
        counted()
        write(path, data)

    def unlink_or_die(path: Path, missing_ok: bool = False) -> None:
        if path.suffix in (".crt", ".key"):
            counted()
        unlink(path, missing_ok)

    monkeypatch.setattr(files, "write_atomic", write_or_die)
    monkeypatch.setattr(Path, "unlink", unlink_or_die)
    return lambda: count


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_a_server_that_is_killed_between_two_writes_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: SharedKeySet | None, after: SharedKeySet
) -> None:
    start, number, killed = tmp_path / "start", 0, True
    SharedKeyFiles(start)
    start.mkdir()
    if before is not None:
        SharedKeyFiles(start).write(before, agreed(1, before))
    while killed:
        number += 1
        here = tmp_path / str(number)
        shutil.copytree(start, here)
        with monkeypatch.context() as patched:
            kill_before(patched, number)
            try:
                SharedKeyFiles(here).write(after, agreed(2, after))
                killed = False
            except KilledError:
                pass
        if (here / "pki/ca.crt").exists():
            read_ca(here / "pki")  # the state in between can be loaded
        SharedKeyFiles(here).write(after, agreed(2, after))
        assert content(here) == {name: one.reveal() for name, one in after.files.items()}
        assert SharedKeyFiles(here).record().agreed == agreed(2, after)
        assert (here / "pki/rollover").exists() == any(name.startswith("rollover") for name in after.files)
    assert number > 2


BAD_RECORDS = {
    "no record": None,
    "half of one": b'{"cluster": "c"',
    "another form": b"[]",
    "brackets without an end": b"[" * 100_000,
    "a generation that is no number": b'{"cluster": "c", "generation": "x"}',
}


@pytest.mark.parametrize("data", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_a_record_that_cannot_be_read_agrees_with_nothing(tmp_path: Path, data: bytes | None) -> None:
    (tmp_path / "server").mkdir()
    if data is not None:
        (tmp_path / "server" / RECORD).write_bytes(data)
    assert SharedKeyFiles(tmp_path).record() == FilesRecord()


def test_files_that_are_not_whole_are_named(tmp_path: Path) -> None:
    SharedKeyFiles(tmp_path).write(ALONE, agreed(1, ALONE))
    (tmp_path / "pki/lineage.key").write_bytes(os.urandom(10))
    with pytest.raises(ConfigError, match=f"^{tmp_path}/pki/lineage.key: .*; restore it from a backup"):
        SharedKeyFiles(tmp_path).key_set()


def test_a_copy_that_was_left_is_removed(tmp_path: Path) -> None:
    here = SharedKeyFiles(tmp_path)
    here.write(ALONE, agreed(1, ALONE))
    left = tmp_path / "server/staging/pki"
    left.mkdir(parents=True)
    (left / "ca.key").write_bytes(b"of another time")
    with here.staged() as staging:
        assert content(staging) == content(tmp_path)
        assert staging.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "server/staging").exists()
