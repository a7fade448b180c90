"""The profile: one YAML file that describes a fleet."""
