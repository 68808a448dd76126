"""apiextensions.k8s.io/v1: CustomResourceDefinition, read-only."""
