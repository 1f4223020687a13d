"""``python -m rocekit``: the command line, where its program is not on PATH."""

from rocekit.cli import main

main()
