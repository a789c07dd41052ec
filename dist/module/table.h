#pragma once
// The functions of a module built with one MPI (mpi.cpp: thimble_openmpi.so, thimble_mpich.so). The library links no
// MPI: it loads the module of the MPI whose launcher started the process. Only bytes move.

#include <cstdint>

namespace thimble::dist {

/// Functions return 0, or an error for `text`. Ranks number all processes of the launch.
struct MpiTable {
  const char* name;  ///< "Open MPI"
  /// Begins MPI for one thread. Tags go from 0 to `most_tag`.
  int (*start)(int* rank, int* size, int* most_tag);
  int (*send)(const void* data, int bytes, int to, int tag, std::intptr_t* request);
  /// Takes the next message of a rank, if any: returns its size and a handle for `receive`.
  int (*probe)(int from, int tag, int* is_there, int* bytes, std::intptr_t* message);
  int (*receive)(void* data, int bytes, std::intptr_t message, std::intptr_t* request);
  int (*test)(std::intptr_t* request, int* is_done);
  void (*text)(int error, char* text, int bytes);
  void (*abort)(int status);
  int (*finish)();
};

/// Exported by each module as "thimble_mpi_table".
using MpiTableFunction = const MpiTable* (*)();

}  // namespace thimble::dist
