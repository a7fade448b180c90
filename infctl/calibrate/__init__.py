"""Measures a running engine and fits its timing model."""
