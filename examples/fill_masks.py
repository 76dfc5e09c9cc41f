"""Fill masks from Python: the five most probable words for each [MASK] of each line.

echo "It was founded as a small [MASK] on the river." | python examples/fill_masks.py work/run
"""

import sys
from pathlib import Path

from clozeline import fill


def main(run: Path) -> None:
    """Print each line filled, then the guesses for its masks."""
    for filled in fill(run, map(str.strip, sys.stdin), top=5):
        print(filled.text)
        for number, guesses in enumerate(filled.guesses, start=1):
            shown = (f"{guess.token} {guess.probability:.1%}" for guess in guesses)
            print(f"  {number}  {'  '.join(shown)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
