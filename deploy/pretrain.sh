#!/usr/bin/env bash
# One machine's part of a pretraining run. The same line on each machine:
#
#     HOST=10.0.0.1 NODES=2 deploy/pretrain.sh s3://bucket/shards --out s3://bucket/run --preset bert-large
#
# HOST      an address or the host name of one of the machines, where they meet; default: this machine
# NODES     number of machines; default 1
# ADDRESS   name or address of this machine for the others; default: HOST if that is
#           this machine, else its first IP address
# PORT      port on HOST; default 29500. Training itself takes free ports.
# GPUS      processes on this machine; default: its number of GPUs
# RESTARTS  how often the processes of this machine may fail and be started again; default 3
#
# --out must be a URL or a folder that all machines share. SIGTERM on one machine saves a checkpoint and
# ends its part; the others wait for it to come back. SIGTERM on each stops the run. Exit codes are those of `clozeline`: 75 is
# "stopped, the same line continues", 2 "wrong usage".
set -euo pipefail

given=${ADDRESS:-}
ADDRESS=${ADDRESS:-$(hostname -I | cut -d ' ' -f 1)}
ADDRESS=${ADDRESS:-127.0.0.1} # a machine without a network
HOST=${HOST:-$ADDRESS}
PORT=${PORT:-29500}

# A machine has several names and addresses, and HOST may be any of them.
is_host=0
names=$( (hostname -I; hostname; hostname -s; hostname -f) 2> /dev/null || true)
for name in "$ADDRESS" $names; do
    if [ "$name" = "$HOST" ]; then is_host=1; fi
done
if [ "$is_host" = 1 ]; then
    ADDRESS=${given:-$HOST} # the others can reach it there
    echo "rendezvous at $HOST:$PORT, on this machine ($ADDRESS)" >&2
else
    echo "rendezvous at $HOST:$PORT, on another machine than this one ($ADDRESS)" >&2
fi

# Otherwise training would meet at the port of a machine that may be replaced by another.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Seconds that a process has to save a checkpoint after SIGTERM.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}

# A machine waits a quarter of an hour for HOST, and an hour for the others: images are large.
run_id=$(cksum <<< "$*" | cut -d ' ' -f 1) # no machine joins another run
exec python "$(dirname "$0")/launch.py" \
    --nnodes "${NODES:-1}" --nproc-per-node "${GPUS:-gpu}" --max-restarts "${RESTARTS:-3}" \
    --rdzv-id "$run_id" --rdzv-backend c10d --rdzv-endpoint "$HOST:$PORT" \
    --rdzv-conf "is_host=$is_host,read_timeout=900,join_timeout=3600" --local-addr "$ADDRESS" \
    --no-python clozeline pretrain "$@" --resume
