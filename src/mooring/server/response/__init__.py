"""Encode replies: content negotiation, objects, lists, errors, headers and compression.

Handlers import `render`; the transport is given `compression` by the control plane.
"""
