#!/usr/bin/env bash
# Evaluate in several processes:
#   tools/dist_test.sh CONFIG CHECKPOINT PROCESSES [ARGS...]
# The variables are those of dist_train.sh.
set -eu
config=$1 checkpoint=$2 processes=$3
shift 3
exec "${PYTHON:-python}" "$(dirname "$0")/_processes.py" "$processes" \
    test.py "$config" "$checkpoint" "$@"
