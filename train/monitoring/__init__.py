"""How a run is doing: metrics on disk, warnings in words.

    {"step": 100, "mlm_loss": 6.73, "tokens_per_second": 14210.0, ...}
    ->  RUN/metrics.jsonl, TensorBoard events

Live warnings and those of the report come from the same rules.
"""
