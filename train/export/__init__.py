"""A run or a classifier to a folder for other libraries: transformers, ONNX.

RUN  ->  DIR/config.json  DIR/model.safetensors  DIR/tokenizer.json  DIR/README.md
"""
