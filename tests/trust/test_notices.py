"""Notices: their URL, key, body, headers and signature, and what a response means."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.api.core.event import new_event
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust import notices
from mooring.trust.notices import FAILED, REFUSED, SENT, NoticeSettings, Receiver
from tests.support.manualclock import EPOCH

KEY = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PAGE = Path(__file__).parents[2] / "docs/operate.md"


@pytest.mark.parametrize(
    ("text", "origin", "target"),
    [
        pytest.param("https://a.example", "https://a.example", b"/", id="a host"),
        pytest.param("https://a.example:8443/x/Hush?k=1", "https://a.example:8443", b"/x/Hush?k=1", id="everything"),
        pytest.param("https://a.example?k=hush", "https://a.example", b"/?k=hush", id="a query behind the host"),
        pytest.param("HTTP://127.0.0.1:9/x", "http://127.0.0.1:9", b"/x", id="http to this machine"),
        pytest.param("http://[::1]:9", "http://[::1]:9", b"/", id="http to this machine by IPv6"),
    ],
)
def test_what_is_shown_of_a_url(text: str, origin: str, target: bytes) -> None:
    receiver = NoticeSettings.read({"notify_url": text}).notify_url
    assert receiver == Receiver(origin, Secret(target))
    assert "hush" not in repr(NoticeSettings.read({"notify_url": text})).lower()


HTTPS_OR_LOOPBACK = "the scheme must be https, or http to a loopback address such as 127.0.0.1"
USER = "it must not contain a user name or a password"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("http://a.example/hush", HTTPS_OR_LOOPBACK, id="http to another machine"),
        pytest.param("http://localhost/hush", HTTPS_OR_LOOPBACK, id="http to a name, which DNS may answer"),
        pytest.param("http://192.0.2.1/hush", HTTPS_OR_LOOPBACK, id="http to an address of another machine"),
        pytest.param("ftp://127.0.0.1/hush", "the scheme must be https", id="another scheme"),
        pytest.param("https://u:hush@a.example", USER, id="a password"),
        pytest.param("https://u:1/hush@a.example", f"{USER}; in a path, @ is written as %40", id="perhaps a password"),
        pytest.param("https:///hush", "it is not a URL", id="no host"),
        pytest.param("https://a.example\\hush", "it is not a URL", id="a path as some programs read it"),
        pytest.param("https://a.example/#hush", "it must not contain a fragment", id="a fragment"),
        pytest.param("https://a.example/hush\n", "it begins or ends with a blank", id="a line end"),
        pytest.param("https://a.example/hush\udcff", "it is not a URL", id="bytes that are not UTF-8"),
    ],
)
def test_a_url_that_is_refused_is_not_repeated(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        NoticeSettings.read({"notify_url": text})
    assert str(refused.value) == f"notify-url: {reason}"


@pytest.mark.parametrize("name", ["notify_key_file", "notify_ca_file"])
def test_a_file_without_a_receiver_is_a_mistake(name: str) -> None:
    with pytest.raises(ConfigError, match=f"notify-url: it is needed with {name.replace('_', '-')}"):
        NoticeSettings.read({name: "x"})
    assert NoticeSettings.read({}).notify_url is None


@pytest.mark.parametrize(
    ("content", "key"),
    [
        pytest.param(b"sixteen bytes 16\n", b"sixteen bytes 16", id="a text"),
        pytest.param(b" whsec_" + KEY.encode() + b"\n", base64.b64decode(KEY), id="the form of Standard Webhooks"),
    ],
)
def test_keys(content: bytes, key: bytes) -> None:
    assert notices.parse_signing_key(content, "f").reveal() == key


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\n", '"f": the key has fewer than 16 bytes', id="an empty file"),
        pytest.param(b"hush" * 3, '"f": the key has fewer than 16 bytes', id="a short key"),
        pytest.param(b"whsec_aHVzaA==", '"f": the key has fewer than 16 bytes', id="a short key in base64"),
        pytest.param(b"whsec_hush-hush-hush-hush", '"f": behind whsec_ it is not base64', id="not base64"),
    ],
)
def test_a_key_that_is_refused_is_not_repeated(content: bytes, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        notices.parse_signing_key(content, "f")
    assert str(refused.value) == reason


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The vector of github.com/standard-webhooks/standard-webhooks, which its libraries have in their tests."""
    key = notices.parse_signing_key(b"whsec_" + KEY.encode(), "f")
    signed = notices.signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def notice(**about: Any) -> notices.EventNotice:
    event = new_event(about, "CertificateRevoked", "stolen", EPOCH, metadata={"name": "e"}, is_warning=True)
    stored = {**event, "metadata": {**event["metadata"], "uid": "u-1"}}
    return notices.notice_of(stored, "https://192.0.2.1:6443", EPOCH)


def test_a_notice_has_what_people_read_of_an_event() -> None:
    node = notice(apiVersion="v1", kind="Node", name="worker", uid="worker")
    assert json.loads(node.body) == {
        "kind": "Notice",
        "apiVersion": "mooring.dev/v1",
        "id": "u-1",
        "time": "2026-01-02T03:04:05Z",
        "type": "Warning",
        "reason": "CertificateRevoked",
        "message": "stolen",
        "about": {"kind": "Node", "name": "worker"},
        "cluster": "https://192.0.2.1:6443",
    }
    about = {"kind": "Secret", "name": "s", "namespace": "kube-system"}
    assert json.loads(notice(**about).body)["about"] == about


def test_each_attempt_has_the_same_id_and_its_own_time() -> None:
    sent, key = notice(kind="Node", name="n"), Secret(b"k" * 16)
    first, second = (dict(notices.headers_of(sent, key, EPOCH + timedelta(seconds=late))) for late in (0, 9))
    assert first["webhook-id"] == second["webhook-id"] == "u-1"
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 9
    assert first["webhook-signature"] != second["webhook-signature"]
    assert "webhook-signature" not in dict(notices.headers_of(sent, None, EPOCH)), "without a key"


def test_the_example_of_the_page_verifies_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    sent, key = notice(kind="Node", name="n"), b"k" * 16
    headers = dict(notices.headers_of(sent, Secret(key), EPOCH))
    monkeypatch.setattr(found["time"], "time", EPOCH.timestamp)
    assert found["is_genuine"](headers, sent.body, key)
    assert not found["is_genuine"](headers, sent.body + b" ", key), "changed"
    assert not found["is_genuine"](headers, sent.body, key + b"x"), "another key"
    monkeypatch.setattr(found["time"], "time", lambda: EPOCH.timestamp() + 301)
    assert not found["is_genuine"](headers, sent.body, key), "too old"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, SENT), (204, SENT), (299, SENT), (302, FAILED), (400, REFUSED), (401, REFUSED), (404, REFUSED), (408, FAILED),
        (410, REFUSED), (425, FAILED), (429, FAILED), (499, REFUSED), (500, FAILED), (503, FAILED), (0, FAILED), (100, FAILED),
    ],
)  # fmt: skip
def test_what_a_response_means(status: int, outcome: str) -> None:
    assert notices.outcome_of(status) == outcome


def test_the_reports_of_workers_make_one() -> None:
    reports = [
        {"host": "https://a", "waiting": 0, "dropped": 1, "problem": ""},
        {"host": "https://a", "waiting": 2, "dropped": 0, "problem": "it answers 500"},
    ]
    assert notices.combined(reports) == {
        "host": "https://a",
        "waiting": 2,
        "dropped": 1,
        "problem": "it answers 500",
    }
    assert notices.combined(reports[:1])["problem"] == ""
