"""BERT in plain torch. Imports nothing of ours."""
