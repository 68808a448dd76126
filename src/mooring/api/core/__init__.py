"""Core API group (`v1`): ConfigMap, Secret, Namespace, ServiceAccount, Event, Endpoints, Node, Pod, PodTemplate and Service.

Other groups may import `addresses`.
"""
