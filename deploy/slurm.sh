#!/usr/bin/env bash
# A pretraining run as a Slurm job, from a checkout on a file system that all nodes share:
#
#     sbatch --nodes 4 deploy/slurm.sh work/shards --out work/run --preset bert-large
#
# Ten minutes before its time limit, and when it is preempted, the run saves a checkpoint and the job
# is requeued; it continues on any nodes. `clozeline` and `python` must be on PATH.
#SBATCH --job-name=clozeline
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-gpu=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

export NODES=$SLURM_NNODES
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export HOST=${nodes%%$'\n'*} # the first
export PORT=$((29500 + SLURM_JOB_ID % 1000)) # jobs that share a node

# A node that is done must not end the others, which may still be saving.
code=0
# shellcheck disable=SC2016 # the variables are those of each node
srun --kill-on-bad-exit=0 bash -c 'ADDRESS=$SLURMD_NODENAME exec deploy/pretrain.sh "$@"' pretrain "$@" || code=$?
if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
