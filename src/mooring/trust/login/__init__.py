"""Logins of a user at a cluster: the stored record, and the ExecCredential that kubectl reads."""
