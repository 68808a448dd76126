"""Field numbers of the messages of Services and their endpoints.

Vectors: generated.proto of k8s.io/api core/v1 and discovery/v1.
"""

SERVICE_NUMBERS = {
    "core.v1.Service": "metadata1 spec2 status3",
    "core.v1.ServiceSpec": "ports1 selector2 clusterIP3 type4 externalIPs5 sessionAffinity7 loadBalancerIP8 "
    "loadBalancerSourceRanges9 externalName10 externalTrafficPolicy11 healthCheckNodePort12 publishNotReadyAddresses13 "
    "sessionAffinityConfig14 ipFamilyPolicy17 clusterIPs18 ipFamilies19 allocateLoadBalancerNodePorts20 "
    "loadBalancerClass21 internalTrafficPolicy22 trafficDistribution23",
    "core.v1.ServicePort": "name1 protocol2 port3 targetPort4 nodePort5 appProtocol6",
    "core.v1.SessionAffinityConfig": "clientIP1",
    "core.v1.ClientIPConfig": "timeoutSeconds1",
    "core.v1.ServiceStatus": "loadBalancer1 conditions2",
    "core.v1.LoadBalancerStatus": "ingress1",
    "core.v1.LoadBalancerIngress": "ip1 hostname2 ipMode3 ports4",
    "core.v1.PortStatus": "port1 protocol2 error3",
    "core.v1.Endpoints": "metadata1 subsets2",
    "core.v1.EndpointSubset": "addresses1 notReadyAddresses2 ports3",
    "core.v1.EndpointAddress": "ip1 targetRef2 hostname3 nodeName4",
    "core.v1.EndpointPort": "name1 port2 protocol3 appProtocol4",
    "discovery.v1.EndpointSlice": "metadata1 endpoints2 ports3 addressType4",
    "discovery.v1.Endpoint": "addresses1 conditions2 hostname3 targetRef4 deprecatedTopology5 nodeName6 zone7 hints8",
    "discovery.v1.EndpointConditions": "ready1 serving2 terminating3",
    "discovery.v1.EndpointHints": "forZones1 forNodes2",
    "discovery.v1.ForZone": "name1",
    "discovery.v1.ForNode": "name1",
    "discovery.v1.EndpointPort": "name1 protocol2 port3 appProtocol4",
}
