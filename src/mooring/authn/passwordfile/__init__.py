"""Passwords from a CSV file, plain or hashed."""
