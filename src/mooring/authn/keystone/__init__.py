"""Passwords that an OpenStack Keystone judges."""
