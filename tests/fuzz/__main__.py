"""Fuzz one target with atheris: `python -m tests.fuzz TARGET [OPTION OF LIBFUZZER]...`

The corpus and the crashes of a target stay in FUZZ_FOLDER (default work/fuzz), so that a later call
continues. Without a target: list them.
"""

import os
import sys
from pathlib import Path

OUR_CODE = ["clozeline", "json", "mwparserfromhell"]


def main() -> None:
    """Instrument our code, then run the target until libFuzzer ends the process."""
    if not sys.argv[1:]:
        from tests.fuzz.targets import TARGETS

        print("\n".join(TARGETS))
        return
    import atheris

    with atheris.instrument_imports(include=OUR_CODE, enable_loader_override=False):
        from tests.fuzz.targets import TARGETS, mutate_json

    name, *options = sys.argv[1:]
    folder = (Path(os.environ.get("FUZZ_FOLDER", "work/fuzz")) / name).absolute()
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    target = TARGETS[name]()
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    always = ["-timeout=20", "-rss_limit_mb=4000", "-max_len=4096"]

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        changed = mutate_json(data, seed) if name.endswith(".json") and seed % 4 else None
        return changed[:max_size] if changed else bytes(atheris.Mutate(data, max_size))

    def run(data: bytes) -> None:
        target.run(data)

    arguments = [sys.argv[0], *always, f"-artifact_prefix={folder}/", *options, str(corpus)]
    atheris.Setup(arguments, run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
