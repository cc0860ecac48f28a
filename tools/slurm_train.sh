#!/usr/bin/env bash
# Train on a Slurm cluster:
#   [GPUS=8] tools/slurm_train.sh PARTITION JOB_NAME CONFIG [ARGS...]
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS say what to ask for.
set -eu
partition=$1 job=$2 config=$3
shift 3
exec "$(dirname "$0")/_srun.sh" "$partition" "$job" train.py "$config" "$@"
