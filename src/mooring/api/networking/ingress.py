"""Ingress, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api networking/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.pod.schema.volume import TYPED_LOCAL_OBJECT_REFERENCE
from mooring.api.readonly import read_only_kind, spec_and_status
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.networking.v1."

SERVICE_BACKEND_PORT = Message(
    API + "ServiceBackendPort",
    (
        Field("name", 1, Scalar.STRING),
        Field("number", 2, Scalar.INT32),
    ),
)

INGRESS_SERVICE_BACKEND = Message(
    API + "IngressServiceBackend",
    (
        Field("name", 1, Scalar.STRING, required=True),
        Field("port", 2, SERVICE_BACKEND_PORT),
    ),
)

INGRESS_BACKEND = Message(
    API + "IngressBackend",
    (
        Field("service", 4, INGRESS_SERVICE_BACKEND, pointer=True),
        Field("resource", 3, TYPED_LOCAL_OBJECT_REFERENCE, pointer=True),
    ),
)

INGRESS_TLS = Message(
    API + "IngressTLS",
    (
        Field("hosts", 1, ListOf(Scalar.STRING)),
        Field("secretName", 2, Scalar.STRING),
    ),
)

HTTP_INGRESS_PATH = Message(
    API + "HTTPIngressPath",
    (
        Field("path", 1, Scalar.STRING),
        Field("pathType", 3, Scalar.STRING, required=True, pointer=True),
        Field("backend", 2, INGRESS_BACKEND, required=True),
    ),
)

HTTP_INGRESS_RULE_VALUE = Message(
    API + "HTTPIngressRuleValue",
    (Field("paths", 1, ListOf(HTTP_INGRESS_PATH), required=True),),
)

INGRESS_RULE = Message(
    API + "IngressRule",
    (
        Field("host", 1, Scalar.STRING),
        Field("http", 1, HTTP_INGRESS_RULE_VALUE, pointer=True, within=2),
    ),
)

INGRESS_SPEC = Message(
    API + "IngressSpec",
    (
        Field("ingressClassName", 4, Scalar.STRING, pointer=True),
        Field("defaultBackend", 1, INGRESS_BACKEND, pointer=True),
        Field("tls", 2, ListOf(INGRESS_TLS)),
        Field("rules", 3, ListOf(INGRESS_RULE)),
    ),
)

INGRESS_PORT_STATUS = Message(
    API + "IngressPortStatus",
    (
        Field("port", 1, Scalar.INT32, required=True),
        Field("protocol", 2, Scalar.STRING, required=True),
        Field("error", 3, Scalar.STRING, pointer=True),
    ),
)

INGRESS_LOAD_BALANCER_INGRESS = Message(
    API + "IngressLoadBalancerIngress",
    (
        Field("ip", 1, Scalar.STRING),
        Field("hostname", 2, Scalar.STRING),
        Field("ports", 4, ListOf(INGRESS_PORT_STATUS)),
    ),
)

INGRESS_LOAD_BALANCER_STATUS = Message(
    API + "IngressLoadBalancerStatus",
    (Field("ingress", 1, ListOf(INGRESS_LOAD_BALANCER_INGRESS)),),
)

INGRESS_STATUS = Message(
    API + "IngressStatus",
    (Field("loadBalancer", 1, INGRESS_LOAD_BALANCER_STATUS),),
)

INGRESS = Message(
    API + "Ingress",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, INGRESS_SPEC),
        Field("status", 3, INGRESS_STATUS),
    ),
)

KIND = read_only_kind(
    spec_and_status(INGRESS, "A way in from outside. This server routes no traffic."),
    "networking.k8s.io",
    "ing",
    stored_fields=INGRESS,
    storage="ingress",
)
