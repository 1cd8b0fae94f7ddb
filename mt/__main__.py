"""`python -m mt`, the same as `mt`."""

from mt.cli import main

main()
