"""Lineage of certificates: the hash chain (`chain`), its verification (`verification`), and what a token obtained (`descent`)."""
