"""Faults on purpose: what a command says about damaged files, and what a killed one leaves behind.

trials.py      a table of damages, commands and the line that each must end with
mutations.py   a file's bytes -> the bytes after one flip, cut, insertion, ... drawn from a seed
artifacts.py   small files of every kind, and the commands that read them
torture.py     `make torture`: thousands of mutations, each answered in a process of its own
kills.py       `make kills`: commands killed at random moments, then run again
store_proxy.py a proxy in front of an S3 server that counts requests and makes some fail
stores.py      `make stores`: shards from and to an S3 server that fails
hosts.py       `make hosts`: two machines of which one dies, is cut off, or has a full disk
slurm.py       `make slurm`: the recipes of deploy/ on two hosts while jobs stop and are lost
engines.py     `make engines`: the graph on clusters of Flink and Spark on this machine
engine_kills.py  `make engine-kills`: the same while each process of a cluster is killed
"""
