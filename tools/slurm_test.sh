#!/usr/bin/env bash
# Evaluate on a Slurm cluster:
#   [GPUS=8] tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [ARGS...]
# The variables are those of slurm_train.sh.
set -eu
partition=$1 job=$2 config=$3 checkpoint=$4
shift 4
exec "$(dirname "$0")/_srun.sh" "$partition" "$job" test.py \
    "$config" "$checkpoint" "$@"
