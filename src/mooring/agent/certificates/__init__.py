"""Certificates of a member: their files, requests and renewals.

Of the rest of this room only `steps`, `disk` and `clockskew` are imported here.
"""
