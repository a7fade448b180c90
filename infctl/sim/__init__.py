"""The virtual-time driver: the same policies against simulated engines."""
