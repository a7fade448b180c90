"""infctl: operations toolkit for cloud-native LLM inference."""

__version__ = "0.1.0"
