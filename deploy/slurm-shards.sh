#!/usr/bin/env bash
# Shards from text as a Slurm job array: each element does its share of the job, on one core.
#
#     sbatch --array 0-63 deploy/slurm-shards.sh "/data/articles/*.parquet" --tokenizer work/tokenizer --out work/shards
#
# --out is on a file system that all nodes share, or a URL. Elements may start at any time, be requeued
# or run twice: each waits for what it needs from others, and is requeued if that takes too long.
# `clozeline` must be on PATH.
#SBATCH --job-name=clozeline-shards
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=4G
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

code=0
clozeline shards "$@" --task "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" || code=$?
if [ "$code" -eq 75 ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
