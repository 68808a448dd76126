"""Encode replies: content negotiation, objects, lists, errors, headers and compression.

Handlers import `render`; the pipeline imports `headers`; the transport is given `compression` by the control plane.
"""
