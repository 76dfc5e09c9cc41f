"""Text to shards of tokenized, paired, pre-masked examples. Never imports torch."""
