"""Approvers of certificate requests, one for each way in which a machine proves itself."""
