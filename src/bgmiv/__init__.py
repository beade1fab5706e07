"""Instrumental-variable analysis."""
