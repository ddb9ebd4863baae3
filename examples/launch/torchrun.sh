#!/bin/sh
# Two machines with torchrun. Run it on each of them, with the same address:
#   examples/launch/torchrun.sh host-a --steps 100
# Any machine may come first; the one that gets rank 0 has the summary of both.
set -eu
meeting_point=$1
shift
exec traceml run -- torchrun --nnodes "${NODES:-2}" --nproc-per-node "${GPUS_PER_NODE:-1}" \
  --rdzv-backend c10d --rdzv-endpoint "$meeting_point:${MASTER_PORT:-29500}" --rdzv-id train \
  ${LOCAL_ADDR:+--local-addr "$LOCAL_ADDR"} "${TRAIN:-examples/launch/train.py}" "$@"
