"""RUN, tasks.toml  ->  one table of scores, benchmark.json, and a classifier for each task."""
