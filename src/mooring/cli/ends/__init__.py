"""`mooring ends`: what a store that was restored would bring back."""
