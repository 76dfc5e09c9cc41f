"""BERT in plain torch. Imports torch and nothing else of this project.

    BertForPretraining(config)(input_ids, token_type_ids, attention_mask, positions)
    ->  masked-LM logits [B, P, V], next-sentence logits [B, 2]

A preset is a set of `BertConfig` values; one encoder serves all of them.
"""
