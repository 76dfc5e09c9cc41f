"""Checks of a finished data set: every file, every row, and on request its sources.

    work/shards
    ->  ["train-00001-of-00004.arrow: rows whose A has no [SEP]: 3, the first at 812"]

A sound data set has no findings.
"""
