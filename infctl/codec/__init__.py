"""What engine plugins share: command-line flags and metrics texts. Pure; public through plugin."""
