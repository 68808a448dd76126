"""Configuration of a server: values of flags become typed settings, and every error names the flag and says what to give."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.authn.anonymous import AnonymousSettings
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.errors import ConfigError
from mooring.settings.addresses import Endpoint
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import AuditSettings, AuthorizationSettings
from mooring.settings.storage import StorageSettings

TWO = ("192.0.2.1", "2001:db8::1")


def config(**flags: Any) -> ServerConfig:
    return server_config(**{"data_dir": "/d", **flags})


def test_the_defaults_are_those_of_kubernetes() -> None:
    made = config(detected_addresses=("192.0.2.7",))
    assert (made[NetworkSettings].bind_address, made[NetworkSettings].secure_port) == ("0.0.0.0", 6443)
    assert made.endpoints == (Endpoint("192.0.2.7", 6443),)
    assert made[AuthorizationSettings].authorization_mode == ("Node", "RBAC")
    assert made[AnonymousSettings].enabled
    assert made[ServiceAccountSettings].issuer == "https://kubernetes.default.svc.cluster.local"
    assert made[StorageSettings].storage_url == "sqlite:/d/mooring.db"


@pytest.mark.parametrize(
    ("flags", "what", "value"),
    [
        ({"data_dir": "/d//"}, "data_dir", "/d"),
        ({"data_dir": "/"}, "data_dir", "/"),
        ({"storage": "memory:"}, "storage_url", "memory:"),
        ({"bind_address": "192.0.2.1"}, "endpoints", (Endpoint("192.0.2.1", 6443),)),
        *(
            (
                {"bind_address": every, "detected_addresses": found},
                "endpoints",
                tuple(Endpoint(one, 6443) for one in found),
            )
            for every in ("0.0.0.0", "::", "", "::ffff:0.0.0.0", "0:0:0:0:0:0:0:0")
            for found in (("192.0.2.1",), ("2001:db8::1",), ("192.0.2.1", "2001:db8::1"))
        ),
        ({"bind_address": "::"}, "endpoints", (Endpoint("127.0.0.1", 6443),)),
        ({"bind_address": ""}, "bind_address", "0.0.0.0"),
        ({"bind_address": "::ffff:192.0.2.1"}, "bind_address", "192.0.2.1"),
        ({"bind_address": "2001:db8::9", "detected_addresses": TWO}, "endpoints", (Endpoint("2001:db8::9", 6443),)),
        (
            {"endpoints_before": ["a:5"], "detected_addresses": TWO},
            "endpoints",
            (Endpoint("a", 5),),
        ),
        ({"endpoints_before": ["a:5"]}, "given_endpoints", ()),
        (
            {"endpoints_before": ["a:5"], "control_plane_endpoint": ["b:5"]},
            "given_endpoints",
            (Endpoint("b", 5),),
        ),
        (
            {"secure_port": 1234, "control_plane_endpoint": ["a", "b:5"]},
            "endpoints",
            (Endpoint("a", 1234), Endpoint("b", 5)),
        ),
        ({"apiserver_cert_extra_sans": ["A.example", "::0:1"]}, "apiserver_cert_extra_sans", ("a.example", "::1")),
        ({"authorization_mode": " RBAC , ,Node"}, "authorization_mode", ("RBAC", "Node")),
        ({"anonymous_auth": False}, "anonymous_auth", False),
        ({"shutdown_delay_duration": timedelta(seconds=3)}, "shutdown_delay_duration", timedelta(seconds=3)),
        ({}, "disable_http2_serving", False),
        ({"disable_http2_serving": True}, "disable_http2_serving", True),
        ({"anonymous_requests_per_second": 2.5}, "anonymous_requests_per_second", 2.5),
    ],
    ids=str,
)
def test_flags_become_values(flags: dict[str, Any], what: str, value: object) -> None:
    made = config(**flags)
    subjects = [made, *made.settings.values()]
    assert getattr(next(one for one in subjects if hasattr(one, what)), what) == value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"secure_port": -1}, "secure-port: -1 is not a port"),
        ({"secure_port": 65536}, "secure-port: 65536 is not a port"),
        ({"bind_address": "node"}, 'bind-address: "node" is not an IP address'),
        ({"anonymous_requests_per_second": -1.0}, "anonymous-requests-per-second: give 0"),
        ({"anonymous_requests_per_second": float("nan")}, "anonymous-requests-per-second: give 0"),
        ({"anonymous_requests_per_second": float("inf")}, "anonymous-requests-per-second: give 0"),
        (
            {"bind_address": "[::]"},
            'bind-address: "[::]" is not an IP address; 0.0.0.0 or :: means every address of both',
        ),
        (
            {"bind_address": "fe80::1%eth0"},
            'bind-address: "fe80::1%eth0" names an interface; other machines cannot use that',
        ),
        ({"control_plane_endpoint": ["a b"]}, "control-plane-endpoint: "),
        *(
            (
                {"control_plane_endpoint": ["a.example", text]},
                f'control-plane-endpoint: "{text}" means something else on each machine; give an address of this one that others',
            )
            for text in (
                "0.0.0.0",
                "0.0.0.0:443",
                "::",
                "[::]:6443",
                "::ffff:0.0.0.0",
                "[0:0::0]:1",
                "224.0.0.1",
                "ff02::1",
                "255.255.255.255",
                "::ffff:255.255.255.255",
                "::ffff:224.0.0.9",
            )
        ),
        *(
            (
                {"control_plane_endpoint": [text]},
                f'control-plane-endpoint: "{text}" ends in a number; give a DNS name, or an IP',
            )
            for text in ("0", "0:6443", "127.1", "0x0", "0.0.0x7f", "a.1", "00.0.0.0", "0X")
        ),
        ({"audit_log_maxsize": 0}, "audit-log-maxsize: 0 is not a number from 1 to"),
        ({"audit_log_maxbackup": 0}, "audit-log-maxbackup: 0 is not a number from 1 to 1000"),
        ({"audit_log_maxage": -1}, "audit-log-maxage: -1 is not a number from 0 to"),
        ({"apiserver_cert_extra_sans": ["a b"]}, "apiserver-cert-extra-sans: "),
        ({"tls_cert_file": "x"}, "tls-private-key-file: it is needed with tls-cert-file"),
        ({"tls_private_key_file": "x"}, "tls-cert-file: it is needed with tls-private-key-file"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**flags)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("flags", "advertised"),
    [
        pytest.param({}, "192.0.2.1", id="this machine's address"),
        pytest.param({"bind_address": "192.0.2.9"}, "192.0.2.9", id="the one it listens at"),
        pytest.param({"bind_address": "127.0.0.1"}, "", id="none, where only this machine can reach it"),
        pytest.param({"bind_address": "2001:db8::9"}, "", id="none of another family than Services have"),
        pytest.param({"detected_addresses": ()}, "", id="none, where there is none"),
        pytest.param({"service_cluster_ip_range": "fd00::/108"}, "2001:db8::1", id="the one of the family of Services"),
        pytest.param({"advertise_address": "198.51.100.1"}, "198.51.100.1", id="the one given"),
        pytest.param(
            {"advertise_address": "2001:DB8::7", "service_cluster_ip_range": "fd00::/108"},
            "2001:db8::7",
            id="normalised",
        ),
    ],
)
def test_where_pods_reach_the_server(flags: dict[str, Any], advertised: str) -> None:
    assert config(**{"detected_addresses": TWO, **flags}).advertise_address == advertised


def test_the_advertised_address_is_the_endpoint_when_none_is_given() -> None:
    given = {"detected_addresses": TWO, "advertise_address": "198.51.100.1"}
    assert config(**given).endpoints == (Endpoint("198.51.100.1", 6443),)
    assert config(**given, control_plane_endpoint=["a.example"]).endpoints == (Endpoint("a.example", 6443),)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"advertise_address": "a.example"}, 'advertise-address: "a.example" is not an IP address'),
        ({"advertise_address": "0.0.0.0"}, 'advertise-address: "0.0.0.0" means something else on each machine'),
        ({"advertise_address": "127.0.0.1"}, 'advertise-address: "127.0.0.1" means something else'),
        ({"advertise_address": "169.254.1.1"}, 'advertise-address: "169.254.1.1" means something else'),
        ({"advertise_address": "224.0.0.1"}, 'advertise-address: "224.0.0.1" means something else'),
        ({"advertise_address": "2001:db8::1"}, 'advertise-address: "2001:db8::1" is not of the family of 10.96.0.0/12'),
        ({"advertise_address": "10.96.0.1"}, 'advertise-address: "10.96.0.1" is inside 10.96.0.0/12'),
        (
            {"service_cluster_ip_range": ""},
            'service-cluster-ip-range: "" is not a range of addresses; write it like 10.',
        ),
        ({"service_cluster_ip_range": "10.0.0.0"}, 'service-cluster-ip-range: "10.0.0.0" is not a range'),
        ({"service_cluster_ip_range": "x/12"}, 'service-cluster-ip-range: "x/12" is not a range'),
        ({"service_cluster_ip_range": "10.0.0.0/16,fd00::/108"}, "service-cluster-ip-range: "),
        (
            {"service_cluster_ip_range": "10.0.0.0/8"},
            'service-cluster-ip-range: "10.0.0.0/8" is too large; for IPv4, give',
        ),
        ({"service_cluster_ip_range": "10.0.0.0/29"}, 'service-cluster-ip-range: "10.0.0.0/29" is too small'),
        (
            {"service_cluster_ip_range": "fd00::/48"},
            'service-cluster-ip-range: "fd00::/48" is too large; for IPv6, give',
        ),
        ({"service_cluster_ip_range": "fd00::/125"}, 'service-cluster-ip-range: "fd00::/125" is too small'),
    ],
    ids=str,
)
def test_addresses_and_ranges_that_cannot_be_meant(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**flags)
    assert str(caught.value).startswith(message)


def test_a_range_is_written_by_its_first_address() -> None:
    assert (
        str(config(service_cluster_ip_range="10.43.7.1/16")[NetworkSettings].service_cluster_ip_range) == "10.43.0.0/16"
    )


def test_a_name_of_no_setting_is_a_fault_of_the_program() -> None:
    with pytest.raises(TypeError, match="no setting is called another_one"):
        config(another_one=1)


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ({}, "/d/audit.log"),
        ({"data_dir": "/"}, "/audit.log"),
        ({"audit_log_path": ""}, ""),
        ({"audit_log_path": "-"}, "-"),
    ],
    ids=str,
)
def test_the_audit_log_is_in_the_data_directory_unless_it_is_named(flags: dict[str, Any], path: str) -> None:
    made = config(**flags)
    assert made[AuditSettings].file(made.data_dir) == path
