"""`python -m train` is `clozeline`."""

from train.cli import main

main(prog_name="clozeline")
