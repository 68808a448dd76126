"""Authorities of the signers: files of CAs that are followed, and keys in PKCS#11 tokens."""
