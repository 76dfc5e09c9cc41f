"""Coverage-guided fuzzing of whatever reads a file that others wrote: `make fuzz`."""
