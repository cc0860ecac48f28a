#!/usr/bin/env bash
# Train in several processes: tools/dist_train.sh CONFIG PROCESSES [ARGS...]
# On several hosts, call it on each with NNODES, NODE_RANK (0, 1, ...),
# MASTER_ADDR (the first host's address) and PORT set.
set -eu
config=$1 processes=$2
shift 2
exec "${PYTHON:-python}" "$(dirname "$0")/_processes.py" "$processes" \
    train.py "$config" "$@"
