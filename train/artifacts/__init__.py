"""Folders on disk, each whole or absent: runs, checkpoints, classifiers, Hugging Face folders.

    write_run, save_checkpoint  ->  RUN/run.json  RUN/tokenizer/
    RUN/checkpoints/step-00000500/{model.safetensors, optimizer.safetensors, state.json}

Weights are safetensors, gathered by parameter name: the same format for any number of processes.
"""
