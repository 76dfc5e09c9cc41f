"""Hugging Face folders: read and written without importing transformers.

    DIR/config.json, DIR/model.safetensors  <->  BertConfig, BertForPretraining

What plain BERT and ModernBERT cannot express is refused by name.
"""
