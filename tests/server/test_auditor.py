"""Test audit policies: stages, levels, and the bodies that are never recorded.

Source: docs/protocol/audit.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.auditpolicy import parse_policy
from mooring.apimachinery.codec.protobuf import encode_object
from mooring.clock import rfc3339_micro
from mooring.errors import ConfigError
from mooring.registry.write.commit import MAX_OBJECT as STORED
from mooring.server.audit import auditor, logfile
from mooring.server.audit.auditevent import OMITTED, audit_event, encode_record, read_policy, source_addresses
from mooring.server.audit.logfile import AuditLog
from tests.support.auditlog import request_records
from tests.support.manualclock import ManualClock
from tests.support.serverroom import Server, open_server

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
APPLIED = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n"
HIDDEN = "c2VjcmV0LXZhbHVl"
MAP = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "v"}}


def recorded(
    folder: Path, rules: list[dict[str, Any]], calls: Callable[[Server], Awaitable[Any]]
) -> list[dict[str, Any]]:
    """Return the audit records of some calls under a policy of these rules, without those of the server's own writes."""
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))

    async def body() -> None:
        async with open_server(audit_log_path=str(folder / "audit.log"), audit_policy_file=str(policy)) as server:
            await calls(server)

    asyncio.run(body())
    return request_records(folder / "audit.log")


def stages(records: list[dict[str, Any]]) -> list[str]:
    return [record["stage"] for record in records]


def test_a_request_is_recorded_when_it_arrives_and_when_it_is_over(tmp_path: Path) -> None:
    arrived, over = recorded(tmp_path, [{"level": "Metadata"}], lambda server: server.get(CONFIGMAPS))
    assert (arrived["stage"], over["stage"]) == ("RequestReceived", "ResponseComplete")
    assert arrived["auditID"] == over["auditID"]
    assert "responseStatus" not in arrived
    assert over["responseStatus"]["code"] == 200
    assert "requestObject" not in over


def test_a_watch_is_recorded_when_it_begins_too(tmp_path: Path) -> None:
    async def watch(server: Server) -> None:
        await (await server.follow(f"{CONFIGMAPS}?watch=1")).end()

    records = recorded(tmp_path, [{"level": "RequestResponse"}], watch)
    assert stages(records) == ["RequestReceived", "ResponseStarted", "ResponseComplete"]
    assert not any("responseObject" in record for record in records)


def test_stages_and_requests_that_are_not_wanted_are_left_out(tmp_path: Path) -> None:
    async def calls(server: Server) -> None:
        await server.get(CONFIGMAPS)
        await server.get("/version")
        await (await server.follow(f"{CONFIGMAPS}?watch=1")).end()

    rules: list[dict[str, Any]] = [
        {"level": "Metadata", "resources": [{}], "omitStages": ["RequestReceived", "ResponseStarted"]},
        {"level": "None"},
    ]
    records = recorded(tmp_path, rules, calls)
    assert [(record["verb"], record["stage"]) for record in records] == [
        ("list", "ResponseComplete"),
        ("watch", "ResponseComplete"),
    ]


def test_a_bug_of_ours_is_a_panic(tmp_path: Path) -> None:
    async def crash(server: Server) -> None:
        pipeline: Any = server.pipeline

        async def fail(context: Any) -> Any:
            raise RuntimeError("a bug")

        pipeline.dispatch = fail
        await server.get(CONFIGMAPS)

    *_, last = recorded(tmp_path, [{"level": "Metadata"}], crash)
    assert (last["stage"], last["responseStatus"]["code"]) == ("Panic", 500)


def test_the_policy_is_asked_about_who_sent_it_not_whom_they_act_as(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [{"level": "None", "users": ["ann"]}, {"level": "Metadata", "users": ["admin"]}]
    records = recorded(tmp_path, rules, lambda server: server.get("/version", headers=[("Impersonate-User", "ann")]))
    assert [record["user"]["username"] for record in records] == ["admin", "admin"]


def test_failed_authentication_is_recorded_by_the_rules_for_everybody(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [{"level": "None", "users": ["admin"]}, {"level": "Metadata"}]
    (record,) = recorded(tmp_path, rules, lambda server: server.get("/version", token="abcdef.0123456789abcdef"))
    assert (record["responseStatus"]["code"], record["user"]) == (401, {})


QUIET = ["RequestReceived"]


@pytest.mark.parametrize(
    ("level", "call", "request_object", "response_kind"),
    [
        pytest.param("Request", ("POST", CONFIGMAPS, MAP, "application/json"), MAP, None, id="a create at Request"),
        pytest.param(
            "RequestResponse", ("POST", CONFIGMAPS, MAP, "application/json"), MAP, "ConfigMap", id="a create at RequestResponse"
        ),
        pytest.param(
            "Request",
            ("POST", CONFIGMAPS, b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\n", "application/yaml"),
            {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}},
            None,
            id="YAML",
        ),
        pytest.param(
            "Request",
            (
                "POST",
                CONFIGMAPS,
                encode_object(MAP, BY_PLURAL["configmaps"].resource.schema),
                "application/vnd.kubernetes.protobuf",
            ),
            MAP,
            None,
            id="protobuf",
        ),
        pytest.param(
            "RequestResponse",
            ("PATCH", f"{CONFIGMAPS}/none", {"data": {"a": "b"}}, "application/merge-patch+json"),
            {"data": {"a": "b"}},
            "Status",
            id="a patch and an error",
        ),
        pytest.param(
            "Request",
            ("PATCH", f"{CONFIGMAPS}/b?fieldManager=m", APPLIED, "application/apply-patch+yaml"),
            {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "b"}},
            None,
            id="an apply",
        ),
        pytest.param("RequestResponse", ("GET", CONFIGMAPS, None, ""), None, "ConfigMapList", id="a list"),
        pytest.param("RequestResponse", ("GET", "/version", None, ""), None, None, id="a path has no objects"),
    ],
)  # fmt: skip
def test_bodies(
    tmp_path: Path, level: str, call: tuple[Any, ...], request_object: Any, response_kind: str | None
) -> None:
    method, target, body, content_type = call
    (record,) = recorded(
        tmp_path,
        [{"level": level, "omitStages": QUIET}],
        lambda server: server.call(method, target, body=body, content_type=content_type),
    )
    assert record["level"] == level
    assert record.get("requestObject") == request_object
    assert record.get("responseObject", {}).get("kind") == response_kind
    assert OMITTED not in record["annotations"]


@pytest.mark.parametrize(
    ("accept", "target", "kind"),
    [
        pytest.param("application/vnd.kubernetes.protobuf", f"{CONFIGMAPS}/a", "ConfigMap", id="an object"),
        pytest.param("application/vnd.kubernetes.protobuf", CONFIGMAPS, "ConfigMapList", id="a list"),
        pytest.param("application/vnd.kubernetes.protobuf", f"{CONFIGMAPS}/none", "Status", id="an error"),
        pytest.param("application/yaml", f"{CONFIGMAPS}/a", "ConfigMap", id="YAML"),
    ],
)
def test_answers_in_every_wire_form_are_kept_as_objects(tmp_path: Path, accept: str, target: str, kind: str) -> None:
    async def calls(server: Server) -> None:
        await server.create("configmaps", MAP)
        await server.get(target, headers=[("Accept", accept)])

    (record,) = recorded(tmp_path, [{"level": "RequestResponse", "omitStages": QUIET}], calls)
    assert record["responseObject"]["kind"] == kind


def test_delete_options_are_kept(tmp_path: Path) -> None:
    from mooring.apimachinery.metav1 import DELETE_OPTIONS

    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    body = encode_object(options, DELETE_OPTIONS)
    (record,) = recorded(
        tmp_path,
        [{"level": "Request", "omitStages": QUIET}],
        lambda server: server.call(
            "DELETE", f"{CONFIGMAPS}/none", body=body, content_type="application/vnd.kubernetes.protobuf"
        ),
    )
    assert record["requestObject"]["propagationPolicy"] == "Background"


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        pytest.param(
            "POST",
            "/api/v1/namespaces/default/secrets",
            {"metadata": {"name": "a", "annotations": {"last-applied": HIDDEN}}, "data": {"k": HIDDEN}},
            id="a Secret",
        ),
        pytest.param("GET", "/api/v1/namespaces/kube-system/secrets", None, id="a list of Secrets"),
        pytest.param(
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            {"spec": {"token": "abcdef.0123456789abcdef"}},
            id="a TokenReview",
        ),
        pytest.param(
            "POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {}}, id="a TokenRequest"
        ),
    ],
)
def test_no_policy_gets_the_bodies_of_secrets_and_tokens(tmp_path: Path, method: str, target: str, body: Any) -> None:
    async def calls(server: Server) -> None:
        await server.bootstrap_token("abcdef.0123456789abcdef")
        await server.call(method, target, body=body)

    rules = [{"level": "Metadata", "users": ["system:apiserver"]}, {"level": "RequestResponse", "omitStages": QUIET}]
    (record,) = recorded(tmp_path, rules, calls)
    assert record["level"] == "Metadata"
    assert record["annotations"][OMITTED] == "bodies of this kind hold secrets"
    text = (tmp_path / "audit.log").read_text()
    assert not any(hidden in text for hidden in ("requestObject", "responseObject", HIDDEN, "0123456789abcdef", "eyJ"))


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(
            {"kind": "Secret", "apiVersion": "v1", "metadata": {}, "data": {"k": HIDDEN}}, "application/json", id="JSON"
        ),
        pytest.param(
            {"kind": "TokenReview", "apiVersion": "v1", "spec": {"token": HIDDEN}},
            "application/json",
            id="a TokenReview",
        ),
        pytest.param(
            encode_object(
                {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": HIDDEN}},
                BY_PLURAL["secrets"].resource.schema,
            ),
            "application/vnd.kubernetes.protobuf",
            id="protobuf",
        ),
    ],
)
def test_a_secret_that_is_sent_to_the_wrong_path_is_not_kept_either(
    tmp_path: Path, body: Any, content_type: str
) -> None:
    rules: list[dict[str, Any]] = [{"level": "Request", "omitStages": QUIET}]
    sent = ("POST", CONFIGMAPS)
    (record,) = recorded(tmp_path, rules, lambda server: server.call(*sent, body=body, content_type=content_type))
    assert record["annotations"][OMITTED] == "requestObject holds secrets"
    assert "requestObject" not in record


def test_managed_fields_are_left_out_on_demand(tmp_path: Path) -> None:
    async def calls(server: Server) -> None:
        await server.post(CONFIGMAPS, MAP)
        await server.get(CONFIGMAPS)

    made, listed = recorded(
        tmp_path, [{"level": "RequestResponse", "omitStages": QUIET, "omitManagedFields": True}], calls
    )
    assert made["responseObject"]["metadata"]["name"] == "a"
    assert listed["responseObject"]["items"]
    assert "managedFields" not in (tmp_path / "audit.log").read_text()


def test_bodies_that_are_too_large_or_unreadable_are_left_out_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "MAX_OBJECT", 2000)

    async def calls(server: Server) -> None:
        await server.post(CONFIGMAPS, {**MAP, "data": {"k": "v" * 2000}})
        await server.post(CONFIGMAPS, b"{")
        await server.call("PATCH", f"{CONFIGMAPS}/a", body=b"[]", content_type="application/json-patch+json")

    large, junk, patch = recorded(
        tmp_path, [{"level": "RequestResponse", "omitStages": QUIET, "omitManagedFields": True}], calls
    )
    assert large["annotations"][OMITTED] == "requestObject is too large, responseObject is too large"
    assert junk["annotations"][OMITTED] == "requestObject cannot be read"
    assert patch["requestObject"] == []


ALIASES = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\ndata: {a: &a v, b: *a}\n"
LARGE = {**MAP, "data": {"k": "v" * 20_000}}


@pytest.mark.parametrize(
    ("body", "media", "accept"),
    [
        pytest.param(json.dumps(LARGE).encode(), "application/json", "application/json", id="JSON"),
        pytest.param(json.dumps(LARGE).encode(), "application/yaml", "application/yaml", id="YAML"),
        pytest.param(ALIASES, "application/yaml", "application/json", id="YAML with aliases"),
        pytest.param(
            encode_object(LARGE, BY_PLURAL["configmaps"].resource.schema),
            "application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf",
            id="protobuf",
        ),
    ],
)
def test_large_bodies_are_read_in_the_thread_for_long_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, media: str, accept: str
) -> None:
    threads: list[str] = []
    decoders = {"JSON": "decode_json", "YAML": "decode_yaml", "protobuf": "decode_message"}
    for name in decoders.values():
        decode = getattr(auditor, name)

        def noted(*given: Any, decode: Callable[..., Any] = decode) -> Any:
            threads.append(threading.current_thread().name)
            return decode(*given)

        monkeypatch.setattr(auditor, name, noted)
    accepted = [("Accept", accept)]
    (record,) = recorded(
        tmp_path,
        [{"level": "RequestResponse", "omitStages": QUIET}],
        lambda server: server.call("POST", CONFIGMAPS, body=body, content_type=media, headers=accepted),
    )
    assert record["requestObject"]["kind"] == record["responseObject"]["kind"] == "ConfigMap"
    assert len(threads) >= 2
    assert {name.rpartition("_")[0] for name in threads} == {"long-work"}


def test_an_object_as_large_as_the_store_takes_is_kept(tmp_path: Path) -> None:
    event = {"kind": "Event", "apiVersion": "v1", "metadata": {"name": "a"}, "involvedObject": {"namespace": "default"}}
    large = {**event, "message": "x" * (STORED - 600)}
    (record,) = recorded(
        tmp_path,
        [{"level": "RequestResponse", "omitStages": QUIET}],
        lambda server: server.post("/api/v1/namespaces/default/events", large),
    )
    assert record["responseStatus"]["code"] == 201
    assert record["requestObject"]["message"] == record["responseObject"]["message"] == large["message"]


def test_a_stop_before_the_bodies_are_read_keeps_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stopped(*given: Any, **how: Any) -> Any:
        raise asyncio.CancelledError

    async def calls(server: Server) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(server.pipeline._registry.long_work, "run", stopped)
            with pytest.raises(asyncio.CancelledError):
                await server.get(CONFIGMAPS)

    (record,) = recorded(tmp_path, [{"level": "RequestResponse", "omitStages": QUIET}], calls)
    assert record["annotations"][OMITTED] == "the server stopped before the bodies were read"


@pytest.mark.parametrize(
    ("path", "level", "is_on"),
    [
        pytest.param("a.log", "", True, id="a log without a policy"),
        pytest.param("a.log", "Metadata", True, id="a policy"),
        pytest.param("a.log", "None", False, id="a policy that keeps nothing"),
        pytest.param("", "Metadata", False, id="no log"),
        pytest.param("/dev/null", "", False, id="a log that keeps nothing"),
    ],
)
def test_audit_that_records_no_request_is_off(path: str, level: str, is_on: bool) -> None:
    text = f"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{{level: '{level}'}}]"
    policy = parse_policy(text.encode(), "file") if level else None
    assert auditor.Auditor(AuditLog(path), policy, ManualClock(), os.urandom).is_on is is_on


def test_a_policy_that_cannot_be_read_is_told_before_anything_starts(tmp_path: Path) -> None:
    assert read_policy("") is None
    with pytest.raises(ConfigError, match=r"audit-policy-file: .*missing cannot be read: no such file"):
        read_policy(str(tmp_path / "missing"))
    (tmp_path / "policy").write_text("kind: Policy")
    with pytest.raises(ConfigError, match=r"audit-policy-file: .*policy: one Policy"):
        read_policy(str(tmp_path / "policy"))


def test_the_second_server_of_a_data_directory_writes_a_file_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        first, second = (AuditLog(str(tmp_path / "audit.log"), suffix=f"-{port}") for port in (1, 2))
        first.start()
        second.start()
        first.record({"n": 1})
        second.record({"n": 2})
        with pytest.raises(ConfigError, match="audit-log-path"):
            AuditLog(str(tmp_path / "audit.log"), suffix="-2").start()
        await first.stop()
        await second.stop()

    asyncio.run(body())
    assert (tmp_path / "audit.log").read_text() == '{"n":1}\n'
    assert (tmp_path / "audit-2.log").read_text() == '{"n":2}\n'
    assert "another process writes" in caplog.text


def test_rotated_files_go_when_they_are_old(tmp_path: Path) -> None:
    import os

    now = datetime(2026, 1, 31, tzinfo=UTC)
    path = tmp_path / "a"
    for number, days in ((1, 1), (2, 8)):
        old = tmp_path / f"a.{number}"
        old.write_text(f"{days}\n")
        os.utime(old, ((now - timedelta(days=days)).timestamp(),) * 2)

    async def body() -> None:
        log = AuditLog(str(path), max_bytes=10, keep=5, max_age=7, now=lambda: now)
        log.start()
        for number in range(2):
            log.record({"n": number})
            log.flush()
        await log.stop()

    asyncio.run(body())
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "a": '{"n":1}\n',
        "a.1": '{"n":0}\n',
        "a.2": "1\n",
    }


def test_records_of_whole_objects_are_bounded_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "MAX_WAITING_BYTES", 20)
    log = AuditLog(str(tmp_path / "a"))
    for number in range(5):
        log.record({"n": number})
    log.flush()
    asyncio.run(log.stop())
    assert (log.dropped, (tmp_path / "a").read_bytes()) == (3, b'{"n":3}\n{"n":4}\n')


@pytest.mark.parametrize(
    ("forwarded_for", "real_ip", "addresses"),
    [
        pytest.param("", "", ["192.0.2.1"], id="a connection alone"),
        pytest.param("198.51.100.7", "", ["198.51.100.7", "192.0.2.1"], id="one proxy"),
        pytest.param("198.51.100.7, 2001:db8::1 ", "", ["198.51.100.7", "2001:db8::1", "192.0.2.1"], id="two proxies"),
        pytest.param("198.51.100.7", "203.0.113.9", ["198.51.100.7", "203.0.113.9", "192.0.2.1"], id="both headers"),
        pytest.param("198.51.100.7", "198.51.100.7", ["198.51.100.7", "192.0.2.1"], id="one address in both"),
        pytest.param("192.0.2.1", "", ["192.0.2.1"], id="the connection's own is not repeated"),
        pytest.param(
            "192.0.2.1, 198.51.100.7", "", ["192.0.2.1", "198.51.100.7", "192.0.2.1"], id="but the last is proven"
        ),
        pytest.param("::ffff:198.51.100.7", "", ["198.51.100.7", "192.0.2.1"], id="an IPv4-mapped one"),
        pytest.param("unknown, 198.51.100.7:80, <script>, ,", "x", ["192.0.2.1"], id="what is not an address"),
        pytest.param(", ".join(["203.0.113.9"] * 5000), "", ["203.0.113.9"] * 8 + ["192.0.2.1"], id="a long list"),
    ],
)
def test_source_addresses_end_with_that_of_the_connection(
    forwarded_for: str, real_ip: str, addresses: list[str]
) -> None:
    """Source: `SourceIPs` of k8s.io/apimachinery, and the field in audit.k8s.io/v1."""
    assert list(source_addresses(forwarded_for, real_ip, "192.0.2.1")) == addresses


@pytest.mark.parametrize(
    ("lines", "addresses"),
    [
        pytest.param(
            ["198.51.100.7", "203.0.113.9"], ["198.51.100.7", "203.0.113.9"], id="that a proxy added its own to"
        ),
        pytest.param(
            ["x", "", "198.51.100.7,203.0.113.9"], ["198.51.100.7", "203.0.113.9"], id="of which some are useless"
        ),
        pytest.param(
            [f"198.51.100.{number}" for number in range(50)],
            [f"198.51.100.{number}" for number in range(42, 50)],
            id="of many, the nearest proxies",
        ),
    ],
)
def test_source_addresses_are_those_of_all_header_lines(tmp_path: Path, lines: list[str], addresses: list[str]) -> None:
    headers = [("X-Forwarded-For", line) for line in lines]
    *_, record = recorded(tmp_path, [{"level": "Metadata"}], lambda server: server.get("/version", headers=headers))
    assert record["sourceIPs"][:-1] == addresses


def test_a_write_of_the_server_itself_has_no_address() -> None:
    assert source_addresses("", "", "") == ()
    assert source_addresses("198.51.100.7", "", "") == ("198.51.100.7",)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(datetime(2026, 1, 2, 3, 4, 5, 6, UTC), id="microseconds"),
        pytest.param(datetime(2026, 1, 2, 3, 4, 5, 0, UTC), id="a whole second"),
        pytest.param(datetime(2026, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=2))), id="another zone"),
    ],
)
def test_times_are_written_in_utc_with_microseconds(moment: datetime) -> None:
    event = audit_event(
        audit_id="a",
        uri="/",
        verb="get",
        user=None,
        sources=("192.0.2.1",),
        user_agent="",
        object_ref=None,
        code=200,
        reason="",
        received=moment,
        completed=moment,
        annotations={},
    )
    record = json.loads(encode_record(event))
    assert {record["requestReceivedTimestamp"], record["stageTimestamp"]} == {rfc3339_micro(moment)}
