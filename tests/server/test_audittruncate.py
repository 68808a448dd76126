"""Test the size of one audit record, and the share of the log for refused requests.

Source: docs/protocol/audit.md.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.server.audit import auditevent, logfile
from mooring.server.audit.auditevent import MAX_ANONYMOUS, MAX_FORWARDED, MAX_RECORD, OMITTED, TRUNCATED, encode_record
from mooring.server.audit.logfile import AuditLog
from tests.support.auditlog import records, request_records
from tests.support.serverroom import Server, connection, open_server

SECRETS = "/api/v1/namespaces/default/secrets"
FF = "\xff" * 60_000
CONTROL = "\x01" * 60_000


def event(**fields: Any) -> dict[str, Any]:
    """Return a record with every field that a request can fill."""
    user = {"username": "bob", "uid": "u", "groups": ["a", "b"], "extra": {"scopes": ["view"]}}
    return {
        "kind": "Event",
        "auditID": "one",
        "requestURI": "/version",
        "verb": "get",
        "user": user,
        "impersonatedUser": user,
        "sourceIPs": ["192.0.2.1"],
        "userAgent": "kubectl",
        "objectRef": {
            "resource": "r",
            "namespace": "n",
            "name": "x",
            "apiGroup": "g",
            "apiVersion": "v",
            "subresource": "s",
        },
        "responseStatus": {"metadata": {}, "code": 200},
        "annotations": {"authorization.k8s.io/decision": "allow"},
        **fields,
    }


def user(**fields: Any) -> dict[str, Any]:
    return {"username": "bob", **fields}


MANY = [f"group-{number}-{'x' * 30}" for number in range(5000)]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"requestURI": FF}, id="a URI of bytes that are no ASCII"),
        pytest.param({"requestURI": CONTROL}, id="a URI of control characters"),
        pytest.param({"userAgent": FF}, id="a User-Agent"),
        pytest.param({"verb": "X" * 60_000}, id="a method"),
        pytest.param({"user": user(username=FF)}, id="a username"),
        pytest.param({"user": user(uid=FF)}, id="a uid"),
        pytest.param({"user": user(groups=MANY)}, id="many groups"),
        pytest.param({"user": user(groups=[FF])}, id="one long group"),
        pytest.param({"user": user(extra={"a": [FF]})}, id="extra with a long value"),
        pytest.param({"user": user(extra={FF: ["a"]})}, id="extra with a long key"),
        pytest.param({"user": user(extra=dict.fromkeys(MANY[:50], MANY))}, id="extra of everything"),
        pytest.param(
            {"impersonatedUser": user(groups=MANY, extra={name: [name] for name in MANY})}, id="impersonation"
        ),
        pytest.param({"objectRef": {"resource": FF, "name": CONTROL, "namespace": FF}}, id="an object reference"),
        pytest.param({"annotations": {"a": FF}}, id="a long annotation"),
        pytest.param({"annotations": {name: name for name in MANY}}, id="many annotations"),
        pytest.param({"authenticationMetadata": {"impersonationConstraint": FF}}, id="a constraint"),
        pytest.param({"responseStatus": {"code": 403, "reason": FF}}, id="a reason"),
        pytest.param({"requestURI": FF, "userAgent": CONTROL, "user": user(username=FF, groups=MANY)}, id="all of it"),
    ],
)
def test_no_field_makes_a_record_longer_than_its_bound(fields: dict[str, Any]) -> None:
    line = encode_record(event(**fields))
    assert len(line) <= MAX_RECORD
    found = json.loads(line)
    assert found["annotations"][TRUNCATED] == "true"
    assert found["auditID"] == "one"
    assert "more" in line.decode()


texts = st.text(max_size=300) | st.just(FF) | st.just(CONTROL)
maps = st.dictionaries(texts, st.lists(texts, max_size=20), max_size=40)
users = st.fixed_dictionaries({"username": texts, "uid": texts, "groups": st.lists(texts, max_size=40), "extra": maps})


@given(
    fields=st.fixed_dictionaries(
        {
            "user": users,
            "impersonatedUser": users,
            "annotations": st.dictionaries(texts, texts, max_size=40),
            "userAgent": texts,
        }
    )
)
def test_whatever_a_record_holds_it_fits(fields: dict[str, Any]) -> None:
    assert len(encode_record(event(**fields))) <= MAX_RECORD


def test_an_ordinary_record_is_left_as_it_is() -> None:
    groups = [f"CN=team-{number},OU=groups" for number in range(300)]
    long = event(requestURI="/api/v1/pods?labelSelector=" + "x" * 3000, user=user(groups=groups))
    assert json.loads(encode_record(dict(long))) == long


def test_a_record_is_one_line_for_readers_of_unicode_text_too() -> None:
    agent = "a\u2028b\u2029c\u0085d\ne\x0bf\x0cg\x1ch\x1di\x1ej\r"
    body = {"metadata": {"name": agent}}
    line = encode_record(event(userAgent=agent, requestObject=msgspec.Raw(msgspec.json.encode(body)))).decode()
    assert line.splitlines() == [line]
    record = json.loads(line)
    assert (record["userAgent"], record["requestObject"]) == (agent, body)


def test_source_addresses_are_never_cut() -> None:
    addresses = ["2001:db8:1234:5678:9abc:def0:1234:5678"] * (MAX_FORWARDED + 2)
    record = encode_record(event(sourceIPs=addresses, requestURI=FF, user=user(groups=MANY)), MAX_ANONYMOUS)
    assert json.loads(record)["sourceIPs"] == addresses


def test_what_is_cut_says_how_much_is_missing() -> None:
    extra = {str(number): ["v"] for number in range(5000)}
    found = json.loads(encode_record(event(userAgent="x" * 60_000, user=user(groups=MANY, extra=extra))))
    assert found["userAgent"].endswith(" more characters)")
    assert found["user"]["groups"][-1].endswith(" more)")
    assert found["user"]["extra"]["..."][0].endswith(" more)")
    assert json.loads(encode_record(event(annotations=dict.fromkeys(MANY, "v"))))["annotations"]["..."].endswith(
        " more)"
    )


def test_bodies_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditevent, "MAX_OBJECT", 40_000)
    body = {"kind": "ConfigMap", "data": {"a": "x" * 30_000}}
    kept = json.loads(encode_record(event(requestObject=body, userAgent=FF)))
    assert kept["requestObject"] == body
    assert kept["annotations"][TRUNCATED] == "true"
    grown = json.loads(encode_record(event(requestObject=body, responseObject={"data": {"a": "\x01" * 30_000}})))
    assert grown["requestObject"] == body
    assert "responseObject" not in grown
    assert grown["annotations"][OMITTED] == "responseObject is too large"
    assert TRUNCATED not in grown["annotations"]
    both = event(responseObject={"a": "x" * 50_000}, annotations={OMITTED: "requestObject cannot be read"})
    shown = json.loads(encode_record(both))["annotations"][OMITTED]
    assert shown == "requestObject cannot be read, responseObject is too large"


# -- what refused requests take ----------------------------------------------------------------------------------


LONG = "x" * 12_000
ANONYMOUS_REQUESTS = {
    "60 kB of bytes that grow": (f"/version?{FF}", [("User-Agent", FF)]),
    "12 kB that do not": (f"/version?{LONG}", [("User-Agent", LONG)]),
    "a name, a namespace and a subresource": (
        f"/apis/{LONG}/v1/namespaces/{LONG}/{LONG}/{LONG}/{LONG}",
        [("User-Agent", LONG), ("X-Forwarded-For", LONG), ("Forwarded", LONG)],
    ),
    "escapes": ("/" + "%01" * 4_000 + "?" + "%01" * 4_000, [("User-Agent", "\x7f" * 4_000)]),
    "a token that is refused": (f"/api/v1/pods?{LONG}", [("User-Agent", LONG), ("Authorization", f"Bearer {LONG}")]),
}


@pytest.mark.parametrize(("target", "headers"), ANONYMOUS_REQUESTS.values(), ids=ANONYMOUS_REQUESTS)
def test_an_unauthenticated_request_leaves_a_record_of_two_kilobytes(
    tmp_path: Path, target: str, headers: list[tuple[str, str]]
) -> None:
    async def body() -> None:
        async with open_server(audit_log_path=str(tmp_path / "audit.log")) as server:
            await server.get(target, via=connection(), headers=[*headers, ("Audit-ID", "i" * 64)])

    asyncio.run(body())
    (record,) = request_records(tmp_path / "audit.log")
    assert len(encode_record(record)) <= MAX_ANONYMOUS
    assert record["annotations"][TRUNCATED] == "true"
    assert "more characters)" in record["requestURI"]
    assert record["auditID"] == "i" * 64


def test_the_record_of_an_authenticated_client_is_longer(tmp_path: Path) -> None:
    async def body() -> None:
        async with open_server(audit_log_path=str(tmp_path / "audit.log")) as server:
            await server.get(f"/version?{LONG}")

    asyncio.run(body())
    (record,) = request_records(tmp_path / "audit.log")
    assert record["requestURI"] == f"/version?{LONG}"


def test_a_flood_of_refused_requests_pushes_out_no_other_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(server: Server, number: int) -> None:
        agent = [("User-Agent", "flood")]
        if number % 2:
            await server.get(SECRETS, via=server.user("bob"), headers=agent)
        else:
            await server.get(f"/version?{number}", via=connection(), headers=agent)

    async def body() -> None:
        async with open_server(
            audit_log_path=str(tmp_path / "audit.log"), audit_log_maxsize=1, audit_log_maxbackup=1
        ) as server:
            await server.get("/version", headers=[("User-Agent", "before")])
            for number in range(3500):
                await ask(server, number)
            await server.get("/version", headers=[("User-Agent", "after")])

    monkeypatch.setattr(logfile, "FLUSH_SECONDS", 0.01)
    asyncio.run(body())
    kept = request_records(tmp_path / "audit.log")
    assert [one["userAgent"] for one in kept if one["userAgent"] != "flood"] == ["before", "after"]
    assert not (tmp_path / "audit.log.1").exists()
    assert sum(len(encode_record(one)) + 1 for one in kept) < (1 << 20) / 4 + 2 * MAX_RECORD
    refused = [one for path in tmp_path.glob("audit-refused.log*") for one in records(path)]
    assert {one["responseStatus"]["code"] for one in refused} == {200, 403}
    assert len(refused) > 1000
    assert (tmp_path / "audit-refused.log").stat().st_mode & 0o777 == 0o600


def append(log: AuditLog, numbers: range, refused: bool) -> None:
    for number in numbers:
        log.record(event(n=number), refused=refused)
        log.flush()


def test_refused_requests_get_their_part_again_after_a_rotation(tmp_path: Path) -> None:
    size = len(encode_record(event(n=10))) + 1

    async def body() -> None:
        log = AuditLog(str(tmp_path / "a.log"), max_bytes=size * 20, keep=1)
        log.start()
        append(log, range(10, 18), refused=True)
        append(log, range(40, 56), refused=False)
        append(log, range(18, 21), refused=True)
        await log.stop()
        assert log.lost == 0

    asyncio.run(body())
    assert [one["n"] for one in records(tmp_path / "a.log.1")] == [*range(10, 15), *range(40, 55)]
    assert [one["n"] for one in records(tmp_path / "a.log")] == [55, 18, 19, 20]
    assert [one["n"] for one in records(tmp_path / "a-refused.log")] == [15, 16, 17]


def test_the_second_file_cannot_be_opened_and_only_its_records_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a-refused.log").mkdir()

    async def body() -> None:
        log = AuditLog(str(tmp_path / "a.log"), max_bytes=4000)
        log.start()
        append(log, range(6), refused=True)
        append(log, range(100, 102), refused=False)
        await log.stop()
        assert log.dropped == 0
        assert log.lost > 0

    asyncio.run(body())
    assert "a-refused.log cannot be written: is a directory" in caplog.text
    assert [one["n"] for one in records(tmp_path / "a.log")][-2:] == [100, 101]


def test_what_is_no_regular_file_takes_everything(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    async def body() -> None:
        for path in ("-", "/dev/zero"):
            log = AuditLog(path, max_bytes=1000)
            log.start()
            append(log, range(10), refused=True)
            await log.stop()
            assert log.written == 10

    asyncio.run(body())
    assert capfdbinary.readouterr().out.count(b"\n") == 10
