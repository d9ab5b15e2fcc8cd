"""Measures: pure functions over arrays."""
