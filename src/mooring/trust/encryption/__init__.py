"""Encryption at rest: the EncryptionConfiguration file (`configuration`), and the ciphers of stored values (`transformer`)."""
