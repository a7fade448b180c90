"""What tests, of infctl and of its plugins, build on."""
