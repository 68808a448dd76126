"""Service account tokens: bound ones, those that Secrets hold, and the issue of new ones."""
