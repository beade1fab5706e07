"""The one training loop, for every neural method."""
