"""Audit: one record or more for each request, in audit.k8s.io/v1, as the audit policy decides.

The pipeline imports `auditor`; the control plane builds `logfile` and reads the policy (`auditevent`).
"""
