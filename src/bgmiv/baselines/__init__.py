"""Other IV methods, one whole method a file."""
