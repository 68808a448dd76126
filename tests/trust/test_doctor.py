"""Sentences of `mooring doctor`: each finding with its result, and the diagnosis with its exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from mooring.trust import doctor
from mooring.trust.doctor import (
    CONNECTED,
    EXIT_CODES,
    FAILED,
    NETWORK_STEPS,
    NO_ROUTE,
    OK,
    REFUSED,
    SILENT,
    SKIPPED,
    STEPS,
    WARNING,
    Diagnosis,
    FinishedStep,
    Judgement,
    SeenCertificate,
    TcpAttempt,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DAY = timedelta(days=1)
SEEN = SeenCertificate("CN=kube-apiserver", "CN=kubernetes", ("api.test", "192.0.2.1"), NOW - DAY, NOW + DAY)


def finished(results: Mapping[str, str], blocked: Mapping[str, str] = {}) -> dict[str, FinishedStep]:
    """Return every step, `ok` unless `results` has another result."""
    return {
        one.name: FinishedStep(
            one,
            Judgement(results.get(one.name, OK), f"what {one.name} found", f"do {one.name}"),
            0.25,
            blocked.get(one.name, ""),
        )
        for one in STEPS
    }


def diagnosis(**results: str) -> Diagnosis:
    return Diagnosis("api.test:6443", tuple(finished(results).values()))


def test_every_class_has_an_exit_code_of_its_own_and_steps_need_earlier_ones() -> None:
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert {one.kind for one in STEPS} == EXIT_CODES.keys()
    names = [one.name for one in STEPS]
    assert len(set(names)) == len(names)
    assert set(NETWORK_STEPS) < set(names)
    for place, one in enumerate(STEPS):
        assert set(one.needs) <= set(names[:place])


@pytest.mark.parametrize(
    ("results", "first", "code", "summary"),
    [
        ({}, None, 0, "nothing is broken between this machine and api.test:6443"),
        ({"tcp": WARNING}, None, 0, "nothing is broken between this machine and api.test:6443; look at: tcp"),
        ({"tcp": SKIPPED}, None, 0, "nothing is broken between this machine and api.test:6443"),
        ({"disk": FAILED, "tcp": FAILED}, "disk", 10, "disk: what disk found; do disk"),
        ({"tcp": FAILED}, "tcp", 11, "tcp: what tcp found; do tcp"),
        ({"tls": FAILED}, "tls", 12, "tls: what tls found; do tls"),
        ({"clock": FAILED, "token": FAILED}, "clock", 13, "clock: what clock found; do clock"),
        ({"pin": FAILED}, "pin", 14, "pin: what pin found; do pin"),
        ({"token": FAILED}, "token", 15, "token: what token found; do token"),
        ({"name": FAILED}, "name", 16, "name: what name found; do name"),
        ({"node": FAILED, "service": FAILED}, "node", 17, "node: what node found; do node"),
    ],
)
def test_the_first_failure_decides(results: Mapping[str, str], first: str | None, code: int, summary: str) -> None:
    found = diagnosis(**results)
    assert (found.first_failure.step.name if found.first_failure else None) == first
    assert (found.healthy, found.exit_code, found.summary()) == (first is None, code, summary)
    document = found.document()
    assert (document["healthy"], document["exitCode"], document["firstFailure"]) == (first is None, code, first or "")


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ({}, ""),
        # Of the files and the membership a join says more itself.
        ({"files": FAILED, "node": FAILED}, ""),
        ({"files": FAILED, "api": FAILED, "pin": FAILED}, "api"),
    ],
)
def test_the_cause_of_a_join_that_failed(results: Mapping[str, str], found: str) -> None:
    cause = diagnosis(**results).cause_beyond("join failed")
    assert (cause.step.name if cause is not None else "") == found


REFUSING = doctor.judge_tcp(6443, [TcpAttempt(4, "192.0.2.1", REFUSED)])
MIXED = doctor.judge_tcp(6443, [TcpAttempt(6, "2001:db8::1", SILENT), TcpAttempt(4, "192.0.2.1", REFUSED)])
UNRESOLVED = doctor.judge_unresolved("api.test", "name or service not known", is_final=True, in_hosts=False)


@pytest.mark.parametrize(
    ("step", "judgement", "error", "is_said"),
    [
        ("tcp", REFUSING, "nothing answers there (connection refused); check", True),
        ("tcp", REFUSING, "no answer in time", False),
        ("tcp", MIXED, "nothing answers there (connection refused); check", False),
        ("names", UNRESOLVED, "nothing answers there (name or service not known); check", True),
        ("names", UNRESOLVED, "no answer in time", False),
        ("pin", doctor.failed("the pin is wrong"), "verifying: the pin is wrong; compare", True),
        ("signature", doctor.failed("no signature (tokens that sign: none)"), "no signature; make one", True),
        ("api", doctor.failed("a captive portal"), "status 302", False),
        (
            "clock",
            doctor.failed("this machine's clock is 61 s behind the server's: x"),
            "this machine's clock is 60 s",
            True,
        ),
        ("clock", doctor.failed("this machine's clock is 61 s behind the server's: x"), "not valid yet", False),
    ],
)
def test_an_error_that_names_the_cause_already(step: str, judgement: Judgement, error: str, is_said: bool) -> None:
    assert FinishedStep(doctor.BY_NAME[step], judgement).is_said_by(error) is is_said


def test_the_document_is_complete() -> None:
    step = FinishedStep(STEPS[0], doctor.failed("broken", joined=True), 1.5)
    found = Diagnosis("b:6443", (step,), (("a:6443", step),)).document()
    assert list(found) == [
        "kind",
        "healthy",
        "exitCode",
        "firstFailure",
        "summary",
        "address",
        "otherAddresses",
        "steps",
    ]
    assert found["summary"] == "files: broken"
    assert found["otherAddresses"] == [{"address": "a:6443", "step": "files", "message": "broken"}]
    assert found["steps"] == [
        {
            "name": "files",
            "class": "machine",
            "result": "failed",
            "message": "broken",
            "remedy": "",
            "seconds": 1.5,
            "facts": {"joined": True},
        }
    ]


@pytest.mark.parametrize(
    ("name", "results", "blocked", "by"),
    [
        ("tls", {}, {}, ""),
        ("tls", {"tcp": FAILED}, {}, "tcp"),
        ("tls", {"tcp": SKIPPED}, {}, ""),
        ("api", {"tls": SKIPPED}, {"tls": "names"}, "names"),
        ("token", {"signature": SKIPPED, "pin": FAILED}, {}, "pin"),
    ],
)
def test_a_step_is_skipped_for_the_first_that_failed(
    name: str, results: Mapping[str, str], blocked: Mapping[str, str], by: str
) -> None:
    assert doctor.blocking(name, finished(results, blocked)) == by


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("no answer; check it", ("no answer", "check it")),
        ("no answer (a; b); check it; or not", ("no answer (a; b)", "check it; or not")),
        ("a) closes; check it", ("a) closes", "check it")),
        ("no remedy", ("no remedy", "")),
    ],
)
def test_an_error_is_a_reason_and_a_remedy(text: str, parts: tuple[str, str]) -> None:
    assert doctor.split_remedy(text) == parts
    judgement = doctor.failed_by(text, a=1)
    assert (judgement.result, judgement.message, judgement.remedy, judgement.facts) == (FAILED, *parts, {"a": 1})


def test_names() -> None:
    found = ((6, "2001:db8::1"), (4, "192.0.2.1"), (4, "192.0.2.2"))
    text = "api.test is IPv4 192.0.2.1, 192.0.2.2 and IPv6 2001:db8::1"
    assert doctor.judge_names("api.test", found, is_address=False, in_hosts=False).message == text
    assert doctor.judge_names("api.test", found, is_address=False, in_hosts=True).message == f"{text}, from /etc/hosts"
    assert doctor.judge_names("::1", ((6, "::1"),), is_address=True, in_hosts=False).message == "::1 is an address"
    final = doctor.judge_unresolved("api.test", "no such name", is_final=True, in_hosts=False)
    assert final.message == "the name api.test cannot be resolved: no such name"
    assert "spelling" in final.remedy
    assert "resolv.conf" in doctor.judge_unresolved("api.test", "no answer", is_final=False, in_hosts=False).remedy


V4, V4_TOO, V6 = (4, "192.0.2.1"), (4, "192.0.2.2"), (6, "2001:db8::1")


@pytest.mark.parametrize(
    ("attempts", "result", "text", "remedy"),
    [
        ([(V4, CONNECTED)], OK, "connected to 192.0.2.1 at port 6443", ""),
        ([(V4, CONNECTED), (V6, NO_ROUTE)], OK, "connected to 192.0.2.1 at port 6443", ""),
        ([(V6, SILENT), (V4, CONNECTED)], WARNING, "IPv6 is advertised and dead: 2001:db8::1 does not answer", "DNS"),
        ([(V4, REFUSED), (V6, CONNECTED)], WARNING, "IPv4 is advertised and dead: 192.0.2.1 refuses", "DNS"),
        ([(V4, REFUSED), (V4_TOO, CONNECTED)], WARNING, "at port 6443; 192.0.2.1 refuses the connection", "DNS"),
        ([(V4, REFUSED)], FAILED, "192.0.2.1 refuses the connection", "no program listens"),
        ([(V4, SILENT)], FAILED, "192.0.2.1 does not answer", "firewalls"),
        ([(V4, NO_ROUTE)], FAILED, "this machine has no route to it", "ip route"),
        ([(V4, "network is down")], FAILED, "192.0.2.1 fails: network is down", "check the address and the port"),
        ([(V4, REFUSED), (V6, SILENT)], FAILED, "192.0.2.1 refuses the connection; 2001:db8::1 does not", "firewalls"),
    ],
)
def test_connections(attempts: Sequence[tuple[tuple[int, str], str]], result: str, text: str, remedy: str) -> None:
    judgement = doctor.judge_tcp(6443, [TcpAttempt(*where, outcome) for where, outcome in attempts])
    assert judgement.result == result
    assert text in judgement.message
    assert remedy in judgement.remedy
    assert judgement.facts["attempts"] == [{"address": where[1], "outcome": outcome} for where, outcome in attempts]


@pytest.mark.parametrize(
    ("judgement", "text", "remedy"),
    [
        (doctor.judge_silent_handshake(5.0, 0), "hangs behind ClientHello: nothing came back within 5 s", "MTU"),
        (doctor.judge_silent_handshake(0.5, 1400), "1400 bytes came back, and then nothing within 0.5 s", "MTU"),
        (doctor.judge_first_bytes(b"HTTP/1.1 400 Bad Request"), "speaks plain HTTP and not TLS", "6443"),
        (doctor.judge_first_bytes(b"SSH-2.0-x\r\n\xff"), "its answer begins with 'SSH-2.0-x..\xff'", "another program"),
        (doctor.judge_closed_handshake("unrecognized name"), "the TLS handshake failed: unrecognized name", "SNI"),
        (
            doctor.judge_unverified(SEEN, "unable to get local issuer certificate", "CN=mine", is_name=False),
            'issued by "CN=kubernetes" and not by the CA of the cluster ("CN=mine"): unable to get local issuer',
            "inspects TLS",
        ),
        (
            doctor.judge_unverified(SEEN, "hostname mismatch", "CN=mine", is_name=True),
            "not for this address (hostname mismatch); it is for api.test, 192.0.2.1",
            "--tls-san",
        ),
        (
            doctor.judge_unverified(SeenCertificate("", "", (), NOW, NOW), "mismatch", "", is_name=True),
            "it is for no name",
            "--tls-san",
        ),
    ],
)
def test_handshakes_that_fail(judgement: Judgement, text: str, remedy: str) -> None:
    assert judgement.result == FAILED
    assert text in judgement.message
    assert remedy in judgement.remedy


@pytest.mark.parametrize(
    ("here", "server", "result", "text"),
    [
        (timedelta(), None, OK, "the server shows CN=kube-apiserver, issued by CN=kubernetes"),
        (2 * DAY, None, FAILED, "which expired at 2026-01-03T03:04:05Z"),
        (2 * DAY, 2 * DAY, FAILED, "which expired at 2026-01-03T03:04:05Z"),
        (-2 * DAY, -2 * DAY, FAILED, "which is not valid before 2026-01-01T03:04:05Z"),
        # The clock is wrong, and the certificate is not.
        (2 * DAY, timedelta(), OK, "the server shows"),
    ],
)
def test_the_time_of_a_certificate(here: timedelta, server: timedelta | None, result: str, text: str) -> None:
    judgement = doctor.judge_certificate(SEEN, NOW + here, None if server is None else NOW + server)
    assert judgement.result == result
    assert text in judgement.message
    assert judgement.facts["issuer"] == "CN=kubernetes"


@pytest.mark.parametrize(
    ("offset", "result", "text"),
    [
        (0, OK, "0 s from the server's clock"),
        (-30, OK, "30 s from the server's clock"),
        (31, WARNING, "31 s ahead of the server's"),
        (-299, WARNING, "299 s behind the server's"),
        (-300, FAILED, "300 s behind the server's: a certificate that is issued now is not valid here yet"),
        (86_399, WARNING, "ahead of the server's"),
        (86_400, FAILED, "a certificate of a day is expired here when it is issued"),
    ],
)
def test_the_clock(offset: int, result: str, text: str) -> None:
    judgement = doctor.judge_clock(
        NOW + timedelta(seconds=offset), NOW, [("a certificate", NOW - 3 * DAY, NOW + 3 * DAY)]
    )
    assert judgement.result == result
    assert text in judgement.message
    assert judgement.facts["offsetSeconds"] == offset


def test_the_clock_by_certificates_and_without_a_date() -> None:
    assert doctor.judge_clock(NOW, None, []).result == SKIPPED
    hour = timedelta(hours=1)
    invalid = doctor.judge_clock(NOW + hour, NOW, [("the certificate of this node", NOW - hour, NOW + hour)])
    assert invalid.result == FAILED
    assert "the certificate of this node is valid by the server's clock and not by this one" in invalid.message
    # It expired by both clocks.
    assert doctor.judge_clock(NOW, NOW, [("a certificate", NOW - 2 * hour, NOW - hour)]).result == OK


PAGE = b"<html><title>Welcome</title></html>"
STATUS = json.dumps({"kind": "Status", "message": "not now"}).encode()


def version(text: str) -> bytes:
    return json.dumps({"gitVersion": text}).encode()


@pytest.mark.parametrize(
    ("status", "headers", "body", "result", "text"),
    [
        (200, {}, version("v1.34.0"), OK, "Kubernetes v1.34.0"),
        (200, {}, version("v1.34.0+k3s1"), OK, "k3s v1.34.0+k3s1"),
        (200, {}, version("v1.34.0+mooring-1.0"), OK, "Mooring v1.34.0+mooring-1.0"),
        (401, {}, STATUS, OK, "answers no anonymous request"),
        (403, {}, STATUS, OK, "answers no anonymous request"),
        (500, {}, STATUS, FAILED, "the API server answered 500: not now"),
        (302, {"location": "https://login.test/a?b=c"}, b"", FAILED, "it redirects to https://login.test (status 302)"),
        (307, {"location": "/login"}, b"", FAILED, "it redirects (status 307)"),
        (200, {}, PAGE, FAILED, "a page and not a Kubernetes version: Welcome"),
        (200, {}, b"[]", FAILED, "a page and not a Kubernetes version"),
        (
            401,
            {},
            PAGE,
            FAILED,
            "a load balancer or proxy answers in place of the API server: status 401 without a Kubernetes Status: Welcome",
        ),
        (404, {}, PAGE, FAILED, "another program answers in place of the API server: status 404 without"),
        (421, {}, b"", FAILED, "does not serve the name in the address"),
        (503, {}, PAGE, FAILED, "a load balancer or proxy answers in place of the API server: status 503 without"),
    ],
)
def test_the_program_that_answers(status: int, headers: Mapping[str, str], body: bytes, result: str, text: str) -> None:
    judgement = doctor.judge_api(status, headers, body)
    assert judgement.result == result
    assert text in judgement.message
    assert bool(judgement.remedy) is (result == FAILED)
    assert judgement.facts["status"] == status


def test_results_of_one_line() -> None:
    assert doctor.ok("fine", a=1) == Judgement(OK, "fine", "", {"a": 1})
    assert doctor.skipped("no token") == Judgement(SKIPPED, "no token", "", {})
    assert doctor.warning("slow", "wait", a=1) == Judgement(WARNING, "slow", "wait", {"a": 1})
