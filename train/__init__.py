"""Shards to a pretrained, fine-tuned model."""
