#!/bin/sh
# A rank per process of mpirun, on the hosts of a file (or on this machine, without one):
#   RANKS=16 HOSTS=hosts.txt examples/launch/mpirun.sh --steps 100
# TraceML has to be installed on every host: each process runs its own `traceml run`, and those of
# one host share an agent.
set -eu
exec mpirun -n "${RANKS:-2}" ${HOSTS:+--hostfile "$HOSTS"} ${MPI_OPTIONS:-} \
  -x MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}" -x MASTER_PORT="${MASTER_PORT:-29500}" \
  traceml run --run-name "${RUN_NAME:-mpi-train}" "${TRAIN:-examples/launch/train.py}" --args "$@"
