"""Certificate profiles, read from the certificate that the authority issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography.x509.oid import NameOID

from mooring.pki import keys
from mooring.pki.errors import IssueError
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.names import AlternativeNames
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import CertificateRequest
from mooring.settings.signing import SIGNING_DURATION
from tests.support.slowkeys import rsa_key
from tests.support.testca import name_of, user_name

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
BEGIN = datetime(2026, 1, 2, 2, 59, 5, tzinfo=UTC)
WHOLE = NOW.replace(microsecond=0)
KEY = keys.generate_key().public_key()
RSA_KEY = rsa_key(2048).public_key()
CA = self_signed_ca(keys.generate_key(), "kubernetes", NOW, 1)
REQUEST = CertificateRequest(names.subject("jane", ["devs"]), KEY)

CLIENT = ("digital signature", "client auth")
RSA_CLIENT = ("digital signature", "key encipherment", "client auth")
SERVER = ("digital signature", "server auth")
KUBERNETES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


@pytest.mark.parametrize(
    ("template", "user", "groups", "usages"),
    [
        pytest.param(profiles.admin(KEY, NOW), "kubernetes-admin", ("kubeadm:cluster-admins",), CLIENT, id="admin"),
        pytest.param(
            profiles.super_admin(KEY, NOW), "kubernetes-super-admin", ("system:masters",), CLIENT, id="super-admin"
        ),
        pytest.param(profiles.client(KEY, NOW, "jane", ["a", "b"]), "jane", ("a", "b"), CLIENT, id="any user"),
        pytest.param(profiles.client(RSA_KEY, NOW, "jane"), "jane", (), RSA_CLIENT, id="a user with an RSA key"),
        pytest.param(profiles.apiserver_serving(KEY, NOW), "kube-apiserver", (), SERVER, id="the API server"),
    ],
)
def test_one_year_certificates(template: Template, user: str, groups: tuple[str, ...], usages: tuple[str, ...]) -> None:
    assert names.common_name(template.subject) == user
    assert names.organizations(template.subject) == groups
    assert template.usages == usages
    assert not template.is_ca
    assert (template.not_before, template.not_after) == (BEGIN, WHOLE + timedelta(days=365))


def test_the_cluster_ca_lives_ten_years_and_signs() -> None:
    template = profiles.certificate_authority(KEY, NOW)
    assert names.common_name(template.subject) == "kubernetes"
    assert template.is_ca
    assert template.usages == ("digital signature", "cert sign", "crl sign")
    assert template.not_after - WHOLE == timedelta(days=3650)


def test_the_api_server_has_the_names_of_its_service_then_those_given_once() -> None:
    ips = [ip_address("10.96.0.1"), ip_address("::1"), ip_address("::1")]
    listed = profiles.apiserver_serving(KEY, NOW, ["host", "kubernetes", "host"], ips).alternative_names
    assert listed == AlternativeNames((*KUBERNETES, "host"), (ip_address("10.96.0.1"), ip_address("::1")))


HOUR = 3600


@pytest.mark.parametrize(
    ("seconds", "cap", "life"),
    [
        pytest.param(
            None, timedelta(hours=8760), timedelta(hours=8760, minutes=-5), id="nothing asked: a year less the backdate"
        ),
        pytest.param(24 * HOUR, timedelta(hours=8760), timedelta(hours=24, minutes=-5), id="a day less the backdate"),
        pytest.param(8 * HOUR, timedelta(hours=8760), timedelta(hours=8, minutes=-5), id="eight hours are not short"),
        pytest.param(
            8 * HOUR - 1, timedelta(hours=8760), timedelta(seconds=8 * HOUR - 1), id="under eight hours: all of them"
        ),
        pytest.param(600, timedelta(hours=8760), timedelta(minutes=10), id="ten minutes"),
        pytest.param(599, timedelta(hours=8760), timedelta(minutes=10), id="less than ten minutes is ten"),
        pytest.param(-1, timedelta(hours=8760), timedelta(minutes=10), id="less than nothing is ten minutes"),
        pytest.param(
            2**31 - 1, timedelta(hours=24), timedelta(hours=24, minutes=-5), id="more than the cap is the cap"
        ),
        pytest.param(None, timedelta(hours=1), timedelta(hours=1), id="a short cap keeps its length"),
        pytest.param(600, timedelta(minutes=1), timedelta(minutes=1), id="the cap wins over the floor"),
    ],
)
def test_how_long_a_requested_certificate_lives(seconds: int | None, cap: timedelta, life: timedelta) -> None:
    template = profiles.from_request(REQUEST, ["client auth"], NOW, seconds, cap)
    assert template.not_before == BEGIN
    assert template.not_after == WHOLE + life
    assert CA.sign(template, NOW, 7).not_valid_after_utc == WHOLE + life


def test_a_requested_certificate_copies_names_and_rebuilds_the_subject() -> None:
    listed = AlternativeNames(("a",), (ip_address("::1"),), ("a@b",), ("spiffe://a/b",))
    subject = name_of(user_name("jane"), (names.UID_ATTRIBUTE, "1"), (NameOID.ORGANIZATION_NAME, "devs"))
    template = profiles.from_request(
        CertificateRequest(subject, KEY, listed), ["client auth", "client auth"], NOW, None, SIGNING_DURATION
    )
    assert template.subject == names.subject("jane", ["devs"])
    assert template.alternative_names == listed
    assert template.usages == ("client auth",)
    assert template.public_key == KEY


def test_a_user_certificate_has_name_groups_uid_and_the_given_lifetime() -> None:
    template = profiles.client(KEY, NOW, "jane", ["devs"], timedelta(minutes=1), "42")
    assert template.subject == names.subject("jane", ["devs"], "42")
    assert template.not_after == WHOLE + timedelta(minutes=1)
    assert CA.sign(template, NOW, 7).subject == template.subject


def test_usages_that_cannot_be_stated_are_refused_before_anything_is_signed() -> None:
    with pytest.raises(IssueError, match="unrecognised key usage"):
        profiles.from_request(REQUEST, ["fly"], NOW, None, SIGNING_DURATION)


def test_a_template_can_be_cut_short() -> None:
    template = profiles.admin(KEY, NOW)
    assert template.ending_by(template.not_after) is template
    assert template.ending_by(WHOLE).not_after == WHOLE


def test_a_template_compares_by_its_content() -> None:
    assert profiles.admin(KEY, NOW) == profiles.admin(KEY, NOW)


def test_a_server_has_the_names_it_is_given_and_no_others() -> None:
    template = profiles.serving(KEY, NOW, "api", ("a.example", "a.example"), lifetime=timedelta(hours=1))
    assert template.alternative_names.dns == ("a.example",)
    assert names.common_name(template.subject) == "api"
    assert template.not_after - NOW.replace(microsecond=0) == timedelta(hours=1)
    assert template.usages == ("digital signature", "server auth")
