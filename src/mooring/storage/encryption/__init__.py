"""Encryption at rest: a store that encrypts values around any driver (`storage`), and its keys and KMS plugins (`providers`)."""
