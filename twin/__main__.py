"""`python -m twin` is the `fourfold` command."""

from twin.cli import main

main()
