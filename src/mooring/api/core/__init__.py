"""Core API group (`v1`): ConfigMap, Secret, Namespace, ServiceAccount, Event, Endpoints, and a folder each for Node, Pod, Service.

Other groups may import `addresses` and `objectreference`.
"""
