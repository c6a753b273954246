"""``python -m efl``."""

from efl.cli import main

main()
