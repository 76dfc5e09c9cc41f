"""Coverage-guided fuzzing of whatever reads a file that others wrote.

make fuzz FUZZ_RUNS=100000            every target, with atheris
python -m tests.fuzz csv -runs=1000   one target, with options of libFuzzer
"""
