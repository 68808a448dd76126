"""Client certificates."""
