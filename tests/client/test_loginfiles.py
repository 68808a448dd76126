"""Login files: modes, atomic writes, locks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mooring.client.login.loginfiles import LoginFiles, directory
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.loginrecord import Credential, IdentitySource, Login, Place

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CREDENTIAL = Credential("jane", NOW, NOW + timedelta(hours=1), token=Secret("t"))
LOGIN = Login("work", Place("https://a"), IdentitySource("password", {"username": "jane"}), "token", CREDENTIAL)


@pytest.mark.parametrize(
    ("environ", "below"),
    [
        pytest.param({"XDG_CACHE_HOME": "/cache"}, Path("/cache"), id="the cache of the user"),
        pytest.param({"XDG_CACHE_HOME": "relative"}, Path("/home/jane/.cache"), id="a relative path is ignored"),
        pytest.param({}, Path("/home/jane/.cache"), id="nothing said"),
    ],
)
def test_where_logins_are(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], below: Path) -> None:
    monkeypatch.setenv("HOME", "/home/jane")
    assert directory(environ) == below / "mooring/logins"


@pytest.fixture
def logins(tmp_path: Path) -> LoginFiles:
    return LoginFiles(tmp_path / "cache/logins")


def test_a_login_is_kept_for_its_user_alone(logins: LoginFiles) -> None:
    old = os.umask(0)
    try:
        logins.write(LOGIN)
    finally:
        os.umask(old)
    path = logins.path(LOGIN.id)
    assert logins.read(LOGIN.id) == LOGIN
    assert logins.every() == [LOGIN.id]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_is_not_there_is_none(logins: LoginFiles) -> None:
    assert logins.read(LOGIN.id) is None
    assert logins.every() == []
    assert logins.remove(LOGIN.id) is False


def test_what_is_removed_is_gone_with_its_lock(logins: LoginFiles) -> None:
    with logins.locked(LOGIN.id):
        logins.write(LOGIN)
    assert logins.remove(LOGIN.id) is True
    assert list(logins.path(LOGIN.id).parent.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(logins: LoginFiles, mode: int) -> None:
    logins.write(LOGIN)
    logins.path(LOGIN.id).parent.chmod(mode)
    with pytest.raises(ConfigError, match="may have been written by another user"):
        logins.read(LOGIN.id)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_record_of_somebody_else_is_refused(logins: LoginFiles) -> None:
    logins.write(LOGIN)
    os.chown(logins.path(LOGIN.id), 65534, 65534)
    with pytest.raises(ConfigError, match="may have been written by another user"):
        logins.read(LOGIN.id)


def test_what_cannot_be_read_or_locked_is_told(logins: LoginFiles, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a directory"):
        LoginFiles(tmp_path / "file").read(LOGIN.id)
    logins.write(LOGIN)
    logins.path(LOGIN.id).with_suffix(".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be locked"), logins.locked(LOGIN.id):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_is_held_for_long_is_told(logins: LoginFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.client.login.loginfiles.LOCK_TRIES", 1)
    logins.write(LOGIN)
    lock = logins.path(LOGIN.id).with_suffix(".lock")
    told = rf"^another command has been renewing this login for 0 s: try again, or end it \(fuser {lock}\)$"
    with logins.locked(LOGIN.id), pytest.raises(ConfigError, match=told):
        logins.remove(LOGIN.id)
    assert logins.remove(LOGIN.id)


def test_one_at_a_time_holds_a_login(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count(_: int) -> None:
        logins = LoginFiles(tmp_path)
        for _ in range(50):
            with logins.locked(LOGIN.id):
                counter.write_text(str(int(counter.read_text()) + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert counter.read_text() == "200"
