"""One pretrained model on many tasks: each fine-tuned on its own labelled tables, in one table.

RUN, glue/CoLA/, glue/STS-B/, tasks.toml  ->  DIR/CoLA/ (a classifier), ..., DIR/benchmark.json
"""
