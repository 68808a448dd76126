"""Output of every command: documents and tables, log lines, printable text, and redaction of secrets."""
