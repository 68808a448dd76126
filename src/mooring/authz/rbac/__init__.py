"""RBAC authorizer, compiled rules and their index, escalation checks, and reconciliation of the default policy."""
