"""NetworkPolicy, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api networking/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.readonly import METADATA, SPEC, read_only_kind
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.networking.v1."

IP_BLOCK = Message(
    API + "IPBlock",
    (
        Field("cidr", 1, Scalar.STRING, required=True),
        Field("except", 2, ListOf(Scalar.STRING)),
    ),
)

NETWORK_POLICY_PEER = Message(
    API + "NetworkPolicyPeer",
    (
        Field("podSelector", 1, LABEL_SELECTOR, pointer=True),
        Field("namespaceSelector", 2, LABEL_SELECTOR, pointer=True),
        Field("ipBlock", 3, IP_BLOCK, pointer=True),
    ),
)

NETWORK_POLICY_PORT = Message(
    API + "NetworkPolicyPort",
    (
        Field("protocol", 1, Scalar.STRING, pointer=True),
        Field("port", 2, Scalar.INT_OR_STRING, pointer=True),
        Field("endPort", 3, Scalar.INT32, pointer=True),
    ),
)

NETWORK_POLICY_INGRESS_RULE = Message(
    API + "NetworkPolicyIngressRule",
    (
        Field("ports", 1, ListOf(NETWORK_POLICY_PORT)),
        Field("from", 2, ListOf(NETWORK_POLICY_PEER)),
    ),
)

NETWORK_POLICY_EGRESS_RULE = Message(
    API + "NetworkPolicyEgressRule",
    (
        Field("ports", 1, ListOf(NETWORK_POLICY_PORT)),
        Field("to", 2, ListOf(NETWORK_POLICY_PEER)),
    ),
)

NETWORK_POLICY_SPEC = Message(
    API + "NetworkPolicySpec",
    (
        Field("podSelector", 1, LABEL_SELECTOR, required=True),
        Field("ingress", 2, ListOf(NETWORK_POLICY_INGRESS_RULE)),
        Field("egress", 3, ListOf(NETWORK_POLICY_EGRESS_RULE)),
        Field("policyTypes", 4, ListOf(Scalar.STRING)),
    ),
)

NETWORK_POLICY = Message(
    API + "NetworkPolicy",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, NETWORK_POLICY_SPEC),
    ),
)

KIND = read_only_kind(
    Message(NETWORK_POLICY.name, (METADATA, SPEC), "Which traffic Pods may have. This server enforces none."),
    "networking.k8s.io",
    "netpol",
    stored_fields=NETWORK_POLICY,
    storage="networkpolicies",
)
