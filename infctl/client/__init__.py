"""The HTTP client that measures: shared by bench and calibrate."""
