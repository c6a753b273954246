"""Compression of updates."""
