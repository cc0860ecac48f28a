#!/usr/bin/env bash
# What dist_train.sh and dist_test.sh share:
#   _torchrun.sh PROCESSES TOOL [ARGS...]
set -eu
processes=$1 tool=$2
shift 2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "${NNODES:-1}" \
    --node_rank "${NODE_RANK:-0}" \
    --master_addr "${MASTER_ADDR:-127.0.0.1}" \
    --master_port "${PORT:-29500}" \
    --nproc_per_node "$processes" \
    "$(dirname "$0")/$tool" "$@" --launcher pytorch
