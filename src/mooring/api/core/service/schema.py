"""Schema of Service.

Rules kept here: data only; field numbers and patch keys from k8s.io/api core/v1 (generated.proto, types.go;
docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge).
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE
from mooring.apimachinery.metav1 import CONDITION, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

SERVICE_PORT = Message(
    CORE + "ServicePort",
    (
        Field("name", 1, Scalar.STRING, "Name of the port, unique in the Service; needed when there are several."),
        Field("protocol", 2, Scalar.STRING, "TCP, UDP or SCTP; TCP when not given.", enum=("SCTP", "TCP", "UDP")),
        Field("port", 3, Scalar.INT32, "The port that clients connect to.", required=True, pointer=True),
        Field("targetPort", 4, Scalar.INT_OR_STRING, "Number or name of the port of the Pods; port when not given."),
        Field("nodePort", 5, Scalar.INT32, "Port of every node that leads here; chosen when needed and not given."),
        Field("appProtocol", 6, Scalar.STRING, "What is spoken on it, such as kubernetes.io/h2c.", pointer=True),
    ),
    "One port of a Service.",
)

CLIENT_IP_CONFIG = Message(
    CORE + "ClientIPConfig",
    (Field("timeoutSeconds", 1, Scalar.INT32, "Seconds that a client is remembered, up to a day.", pointer=True),),
    "How clients are remembered by their address.",
)

SESSION_AFFINITY_CONFIG = Message(
    CORE + "SessionAffinityConfig",
    (Field("clientIP", 1, CLIENT_IP_CONFIG, "For affinity ClientIP.", pointer=True),),
    "How the connections of one client are kept together.",
)

SERVICE_SPEC = Message(
    CORE + "ServiceSpec",
    (
        Field(
            "ports",
            1,
            ListOf(SERVICE_PORT),
            "The ports of the Service.",
            patch="merge",
            patch_key="port",
            list_keys=("port", "protocol"),
        ),
        Field("selector", 2, MapOf(Scalar.STRING), "Labels of the Pods that traffic goes to.", map_atomic=True),
        Field("clusterIP", 3, Scalar.STRING, "Its address in the cluster; chosen when not given. None means headless."),
        Field(
            "type",
            4,
            Scalar.STRING,
            "ClusterIP, NodePort, LoadBalancer or ExternalName.",
            enum=("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
        ),
        Field("externalIPs", 5, ListOf(Scalar.STRING), "Further addresses, which somebody else leads to the nodes."),
        Field(
            "sessionAffinity",
            7,
            Scalar.STRING,
            "ClientIP keeps each client with one Pod; None does not.",
            enum=("ClientIP", "None"),
        ),
        Field("loadBalancerIP", 8, Scalar.STRING, "The address wished for the load balancer. Deprecated."),
        Field("loadBalancerSourceRanges", 9, ListOf(Scalar.STRING), "Who may use the load balancer, as CIDRs."),
        Field("externalName", 10, Scalar.STRING, "The DNS name that an ExternalName Service stands for."),
        Field(
            "externalTrafficPolicy",
            11,
            Scalar.STRING,
            "Cluster, or Local: traffic stays on the node it came to.",
            enum=("Cluster", "Local"),
        ),
        Field("healthCheckNodePort", 12, Scalar.INT32, "Port of a node that tells whether it takes local traffic."),
        Field("publishNotReadyAddresses", 13, Scalar.BOOL, "Whether DNS knows Pods that are not ready."),
        Field("sessionAffinityConfig", 14, SESSION_AFFINITY_CONFIG, "Details of the affinity.", pointer=True),
        Field(
            "ipFamilyPolicy",
            17,
            Scalar.STRING,
            "SingleStack, PreferDualStack or RequireDualStack.",
            pointer=True,
            enum=("PreferDualStack", "RequireDualStack", "SingleStack"),
        ),
        Field("clusterIPs", 18, ListOf(Scalar.STRING), "Its addresses in the cluster, clusterIP first."),
        Field(
            "ipFamilies",
            19,
            ListOf(Scalar.STRING),
            "IPv4 and IPv6, in the order of clusterIPs.",
            enum=("", "IPv4", "IPv6"),
        ),
        Field(
            "allocateLoadBalancerNodePorts", 20, Scalar.BOOL, "Whether a LoadBalancer needs node ports.", pointer=True
        ),
        Field("loadBalancerClass", 21, Scalar.STRING, "Which implementation of load balancers is meant.", pointer=True),
        Field(
            "internalTrafficPolicy",
            22,
            Scalar.STRING,
            "Cluster, or Local for the own node only.",
            pointer=True,
            enum=("Cluster", "Local"),
        ),
        Field(
            "trafficDistribution", 23, Scalar.STRING, "Which endpoints are preferred, as PreferSameZone.", pointer=True
        ),
    ),
    "How a Service is reached and which Pods are behind it.",
)

PORT_STATUS = Message(
    CORE + "PortStatus",
    (
        Field("port", 1, Scalar.INT32, "The port.", required=True, pointer=True),
        Field("protocol", 2, Scalar.STRING, "Its protocol.", required=True, pointer=True, enum=("SCTP", "TCP", "UDP")),
        Field("error", 3, Scalar.STRING, "Why it does not work, as one word.", pointer=True),
    ),
    "The state of one port of a load balancer.",
)

LOAD_BALANCER_INGRESS = Message(
    CORE + "LoadBalancerIngress",
    (
        Field("ip", 1, Scalar.STRING, "Its address."),
        Field("hostname", 2, Scalar.STRING, "Its DNS name."),
        Field("ipMode", 3, Scalar.STRING, "VIP, or Proxy when it sends traffic on by itself.", pointer=True),
        Field("ports", 4, ListOf(PORT_STATUS), "The state of its ports."),
    ),
    "One way into a load balancer.",
)

LOAD_BALANCER_STATUS = Message(
    CORE + "LoadBalancerStatus",
    (Field("ingress", 1, ListOf(LOAD_BALANCER_INGRESS), "The ways into it."),),
    "The state of a load balancer.",
)

SERVICE_STATUS = Message(
    CORE + "ServiceStatus",
    (
        Field("loadBalancer", 1, LOAD_BALANCER_STATUS, "The state of its load balancer, if it has one."),
        Field(
            "conditions",
            2,
            ListOf(CONDITION),
            "Aspects of its state.",
            patch="merge",
            patch_key="type",
            list_keys=("type",),
        ),
    ),
    "What is known of a Service.",
)

SERVICE = Message(
    CORE + "Service",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("spec", 2, SERVICE_SPEC, "How it is reached and which Pods are behind it."),
        Field("status", 3, SERVICE_STATUS, "What is known of it."),
    ),
    "A name and an address for a set of Pods.",
)
