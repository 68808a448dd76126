"""Bearer tokens from a CSV file."""
