"""Workloads: arrivals, lengths and shared prefixes, from traces or models. Pure."""
