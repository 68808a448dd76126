"""Login record and ExecCredential: contents, renewal, and the cluster that a credential is given out for."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.secret import Secret
from mooring.trust.kubeconfig import Cluster
from mooring.trust.loginrecord import (
    API_VERSIONS,
    SPARE,
    Credential,
    ExecInfo,
    IdentitySource,
    Login,
    LoginRecordError,
    Place,
    check_cluster,
    check_id,
    dump,
    exec_credential,
    load,
    read_exec_info,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
CA = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
OTHER = CA.replace(b"AAAA", b"BBBB")
PLACE = Place("https://192.0.2.1:6443", CA, "api.example", "http://proxy.example:3128", disable_compression=True)
TOKEN = Credential("jane", NOW, NOW + HOUR, token=Secret("the-token"))
PAIR = Credential("jane", NOW, NOW + HOUR, certificate_pem=b"CERT", key=Secret("KEY"))
OIDC = dict.fromkeys(("clientID", "clientSecretFile", "caFile", "scopes", "grant", "port"), "") | {
    "issuer": "https://i"
}
LOGIN = Login("work", PLACE, IdentitySource("oidc", OIDC, Secret("refresh")), "token", TOKEN)


@pytest.mark.parametrize(
    "login",
    [
        pytest.param(LOGIN, id="a token from an OpenID provider"),
        pytest.param(replace(LOGIN, kind="certificate", credential=PAIR), id="a certificate"),
        pytest.param(replace(LOGIN, without_cluster=True), id="clients that pass no cluster"),
        pytest.param(replace(LOGIN, place=replace(PLACE, published={"name": "x"})), id="a cluster that it followed"),
        pytest.param(
            Login("work", Place("https://a"), IdentitySource("password", {"username": "jane"})), id="no credential yet"
        ),
    ],
)
def test_a_record_says_what_it_was_made_of(login: Login) -> None:
    assert load(dump(login)) == login


def test_the_way_of_a_record_goes_into_a_kubeconfig_whole() -> None:
    assert PLACE.cluster("work") == Cluster(
        "work",
        "https://192.0.2.1:6443",
        CA,
        tls_server_name="api.example",
        proxy_url="http://proxy.example:3128",
        disable_compression=True,
    )


def test_a_record_of_before_compresses_and_wants_a_cluster() -> None:
    assert not load(changed(lambda record: record.pop("disableCompression"))).place.disable_compression
    assert not load(changed(lambda record: record.pop("withoutCluster"))).without_cluster
    assert load(changed(lambda record: record.pop("published"))).place.published is None


def changed(change: Callable[[Any], Any]) -> bytes:
    record = json.loads(dump(LOGIN))
    change(record)
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(dump(LOGIN)[:-20], id="cut"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"[" * 100_000, id="endless nesting"),
        pytest.param(changed(lambda record: record.update(format="v2")), id="of another version"),
        pytest.param(changed(lambda record: record.pop("server")), id="no server"),
        pytest.param(changed(lambda record: record.update(server=1)), id="a server that is no text"),
        pytest.param(changed(lambda record: record.update(ca="é")), id="a CA that is not ASCII"),
        pytest.param(changed(lambda record: record.update(source=[])), id="a source that is no object"),
        pytest.param(changed(lambda record: record["source"].update(kind="guess")), id="a source nobody knows"),
        pytest.param(
            changed(lambda record: record["source"].update(settings={"a": 1})), id="a setting that is no text"
        ),
        pytest.param(changed(lambda record: record.update(kind="password")), id="a credential nobody knows"),
        pytest.param(changed(lambda record: record["source"]["settings"].pop("grant")), id="a setting is missing"),
        pytest.param(changed(lambda record: record.update(credential="x")), id="a credential that is no object"),
        pytest.param(changed(lambda record: record["credential"].update(token="")), id="a credential without anything"),
        pytest.param(
            changed(lambda record: record["credential"].update(certificate="a", key="b")),
            id="a token and a certificate",
        ),
        pytest.param(
            changed(lambda record: record["credential"].update(token="", certificate="a")), id="a certificate alone"
        ),
        pytest.param(changed(lambda record: record["credential"].update(expires="soon")), id="an end that is no time"),
    ],
)
def test_a_record_that_was_cut_or_changed_is_one_error(data: bytes) -> None:
    with pytest.raises(LoginRecordError, match=r"^the record of the login cannot be read$"):
        load(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_login_or_an_error(data: bytes) -> None:
    with pytest.raises(LoginRecordError):
        load(data)


def test_nothing_secret_is_in_a_repr() -> None:
    assert "the-token" not in repr(LOGIN)
    assert "refresh'" not in repr(LOGIN)
    assert "KEY" not in repr(PAIR)


@pytest.mark.parametrize(
    ("after", "fresh", "usable"),
    [
        pytest.param(timedelta(0), True, True, id="when it was issued"),
        pytest.param(timedelta(minutes=53, seconds=59), True, True, id="a little more than a tenth is left"),
        pytest.param(timedelta(minutes=54), False, True, id="a tenth is left"),
        pytest.param(HOUR - SPARE - timedelta(seconds=1), False, True, id="before the spare seconds"),
        pytest.param(HOUR - SPARE, False, False, id="it may end on the way"),
        pytest.param(HOUR, False, False, id="it has ended"),
        pytest.param(-SPARE, True, True, id="a clock that is a little behind"),
        pytest.param(-SPARE - timedelta(seconds=1), False, False, id="a clock that went back"),
    ],
)
def test_when_a_credential_is_good_and_when_it_is_renewed(after: timedelta, fresh: bool, usable: bool) -> None:
    assert (TOKEN.fresh(NOW + after), TOKEN.usable(NOW + after)) == (fresh, usable)


def test_a_credential_of_a_minute_is_renewed_as_late_as_it_is_good() -> None:
    short = Credential("jane", NOW, NOW + timedelta(minutes=1), token=Secret("x"))
    assert short.fresh(NOW + timedelta(seconds=49))
    assert not short.fresh(NOW + timedelta(seconds=50))


def test_the_id_is_that_of_name_and_server() -> None:
    assert check_id(LOGIN.id) == LOGIN.id
    assert replace(LOGIN, credential=None, kind="certificate").id == LOGIN.id
    assert replace(LOGIN, name="home").id != LOGIN.id
    assert replace(LOGIN, place=replace(PLACE, server="https://other")).id != LOGIN.id


@pytest.mark.parametrize("text", ["", "../../etc/passwd", "0" * 15, "0" * 17, "A" * 16, "0" * 16 + "\n"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(LoginRecordError, match="has 16 hexadecimal digits"):
        check_id(text)


def test_a_renewal_keeps_the_refresh_token_until_it_is_replaced() -> None:
    assert LOGIN.with_credential(PAIR) == replace(LOGIN, credential=PAIR)
    assert LOGIN.with_refresh_token(None).source.refresh_token is None
    assert LOGIN.with_settings({"further": "x"}).source.settings == {**LOGIN.source.settings, "further": "x"}
    assert LOGIN.with_refresh_token(Secret("new")).source.refresh_token == Secret("new")


# ── what kubectl asks ────────────────────────────────────────────────────────────────────────────────────────────


def info(spec: Any = None, **top: Any) -> str:
    asked = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "spec": spec, **top}
    return json.dumps(asked)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        pytest.param("", ExecInfo(), id="by hand"),
        pytest.param(info(), ExecInfo(interactive=False, cluster={}), id="no spec"),
        pytest.param(
            info({"interactive": True, "cluster": {"server": "https://a"}}),
            ExecInfo(interactive=True, cluster={"server": "https://a"}),
            id="v1",
        ),
        pytest.param(
            info({}, apiVersion="client.authentication.k8s.io/v1beta1"),
            ExecInfo("client.authentication.k8s.io/v1beta1", False, {}),
            id="v1beta1",
        ),
    ],
)
def test_what_is_asked(text: str, asked: ExecInfo) -> None:
    assert read_exec_info(text) == asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("{", "is not an ExecCredential", id="no JSON"),
        pytest.param("[]", "is not an ExecCredential", id="a list"),
        pytest.param("{}", "is not an ExecCredential", id="no version"),
        pytest.param(info([1]), "is not an ExecCredential", id="a spec that is a list"),
        pytest.param(info({"cluster": "a"}), "is not an ExecCredential", id="a cluster that is a text"),
        pytest.param(info({"interactive": "yes"}), "is not an ExecCredential", id="interactive that is a text"),
        pytest.param("[" * 100_000, "is not an ExecCredential", id="endless nesting"),
        pytest.param(
            info({}, apiVersion="client.authentication.k8s.io/v1alpha1"),
            "another version than",
            id="a version of the past",
        ),
    ],
)
def test_what_asks_wrong(text: str, message: str) -> None:
    with pytest.raises(LoginRecordError, match=message):
        read_exec_info(text)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


SAME = {"server": PLACE.server, "certificate-authority-data": encoded(CA)}


@pytest.mark.parametrize(
    ("cluster", "place"),
    [
        pytest.param(None, PLACE, id="by hand"),
        pytest.param(SAME, PLACE, id="the cluster of the login"),
        pytest.param({**SAME, "server": PLACE.server + "/"}, PLACE, id="a slash at the end"),
        pytest.param({**SAME, "certificate-authority-data": encoded(CA.rstrip())}, PLACE, id="a line break less"),
        pytest.param({"server": "https://a"}, Place("https://a"), id="the machine's roots, as at login"),
        pytest.param(SAME, replace(PLACE, ca_pem=OTHER + CA), id="one of the CAs, from before the other was published"),
    ],
)
def test_the_credential_is_for_its_own_cluster(cluster: Any, place: Place) -> None:
    check_cluster(ExecInfo(cluster=cluster), replace(LOGIN, place=place))


def test_a_login_may_allow_clients_that_pass_no_cluster_but_none_that_pass_another() -> None:
    login = replace(LOGIN, without_cluster=True)
    check_cluster(ExecInfo(cluster={}), login)
    with pytest.raises(LoginRecordError, match="the credential stays here"):
        check_cluster(ExecInfo(cluster={**SAME, "server": "https://evil"}), login)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        pytest.param(
            {},
            r"^the client passed no cluster .* run: mooring login --name work --allow-clients-without-cluster$",
            id="no cluster at all",
        ),
        pytest.param({**SAME, "server": "https://evil"}, "the credential stays here", id="another server"),
        pytest.param({"server": PLACE.server}, "the credential stays here", id="no CA"),
        pytest.param(
            {**SAME, "certificate-authority-data": encoded(CA + OTHER)}, "the credential stays here", id="a CA more"
        ),
        pytest.param(
            {**SAME, "certificate-authority-data": encoded(OTHER)}, "the credential stays here", id="another CA"
        ),
        pytest.param(
            {**SAME, "certificate-authority-data": encoded(CA.replace(b"AAAA", b"AA-AA"))},
            "the credential stays here",
            id="something that is no certificate",
        ),
        pytest.param(
            {**SAME, "certificate-authority-data": encoded(CA + b"-----BEGIN X")},
            "the credential stays here",
            id="a rest",
        ),
        pytest.param({**SAME, "certificate-authority-data": "!"}, "the credential stays here", id="a CA in no base64"),
        pytest.param({**SAME, "certificate-authority-data": 1}, "the credential stays here", id="a CA that is no text"),
        pytest.param({**SAME, "insecure-skip-tls-verify": True}, "the credential stays here", id="no verification"),
    ],
)
def test_the_credential_is_for_no_other(cluster: Any, message: str) -> None:
    with pytest.raises(LoginRecordError, match=message):
        check_cluster(ExecInfo(cluster=cluster), LOGIN)


@given(st.recursive(st.none() | st.booleans() | st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_whatever_is_asked_is_read_or_refused_and_nothing_is_handed_out_for_it(spec: Any) -> None:
    try:
        asked = read_exec_info(info(spec))
        check_cluster(asked, LOGIN)
    except LoginRecordError:
        return
    raise AssertionError(f"it was taken for the cluster of the login: {spec}")


def test_what_kubectl_reads_of_a_token() -> None:
    assert json.loads(exec_credential(TOKEN, API_VERSIONS[1])) == {
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "status": {"token": "the-token", "expirationTimestamp": "2026-01-02T04:04:05Z"},
    }


def test_what_kubectl_reads_of_a_certificate() -> None:
    status = json.loads(exec_credential(PAIR, API_VERSIONS[0]))["status"]
    assert status == {
        "clientCertificateData": "CERT",
        "clientKeyData": "KEY",
        "expirationTimestamp": "2026-01-02T04:04:05Z",
    }
