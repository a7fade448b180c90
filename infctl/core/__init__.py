"""The pure core: no IO, no clock, no randomness of its own. `now` is monotonic and an argument."""
