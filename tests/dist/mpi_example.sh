#!/bin/sh
# Runs examples/own_model_on_ranks.cpp under an MPI launcher on 2 and on 4 processes. It exits with 0 if its losses
# equal those of one rank and its peaks the predicted ones.
#
#   mpi_example.sh MPIRUN EXAMPLE
set -eu
mpirun=$1 example=$2
if [ "$mpirun" = none ]; then
  echo "SKIPPED: this MPI was not found"
  exit 77
fi
# Open MPI refuses more ranks than processors, and root, unless told otherwise.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for n in 2 4; do
  timeout 120 "$mpirun" -n $n "$example"
done
