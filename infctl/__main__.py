"""`python -m infctl` is `infctl`."""

from infctl.cli import main

main()
