"""`python -m mt`, the same as `mt`."""

from mt.cli.main import main

main()
