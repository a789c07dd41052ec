#!/bin/sh
# examples/own_model_on_ranks.cpp under a launcher of MPI: on 2 and on 4 processes it ends with status 0, which it does
# where its losses are those of one rank and its peaks those that were predicted.
#
#   mpi_example.sh MPIRUN EXAMPLE
set -eu
mpirun=$1 example=$2
if [ "$mpirun" = none ]; then
  echo "SKIPPED: this MPI was not found"
  exit 77
fi
# For Open MPI, which does neither unless it is told to: more ranks than processors, and ranks of root.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for n in 2 4; do
  timeout 120 "$mpirun" -n $n "$example"
done
