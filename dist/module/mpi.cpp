// The functions of table.h over one MPI (of version 3 or later). Compiled once for each MPI that CMake finds.

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <cstring>

#include <thimble/dist/module/table.h>

namespace {

MPI_Comm all_ranks;       // separate from the communicator of the program's messages
bool is_started = false;  // by this module, which then finalizes it

/// Handles are pointers in one MPI and numbers in the other.
template <class Handle>
std::intptr_t number_of(Handle handle) {
  static_assert(sizeof(Handle) <= sizeof(std::intptr_t));
  std::intptr_t number = 0;
  std::memcpy(&number, &handle, sizeof(handle));
  return number;
}

template <class Handle>
Handle handle_of(std::intptr_t number) {
  Handle handle;
  std::memcpy(&handle, &number, sizeof(handle));
  return handle;
}

int start(int* rank, int* size, int* most_tag) {
  int is_there = 0, level = MPI_THREAD_SINGLE;
  if (const int error = MPI_Initialized(&is_there); error != MPI_SUCCESS) return error;
  is_started = is_there == 0;
  if (const int error =
          is_there != 0 ? MPI_Query_thread(&level) : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
      error != MPI_SUCCESS) {
    return error;
  }
  if (level < MPI_THREAD_FUNNELED) return MPI_ERR_OTHER;
  if (const int error = MPI_Comm_dup(MPI_COMM_WORLD, &all_ranks); error != MPI_SUCCESS) return error;
  MPI_Comm_set_errhandler(all_ranks, MPI_ERRORS_RETURN);
  MPI_Comm_rank(all_ranks, rank);
  MPI_Comm_size(all_ranks, size);
  int* bound = nullptr;
  int is_set = 0;
  MPI_Comm_get_attr(all_ranks, MPI_TAG_UB, &bound, &is_set);
  *most_tag = is_set != 0 ? *bound : 32767;  // the standard's minimum
  return MPI_SUCCESS;
}

int send(const void* data, int bytes, int to, int tag, std::intptr_t* request) {
  MPI_Request handle = MPI_REQUEST_NULL;
  const int error = MPI_Isend(data, bytes, MPI_BYTE, to, tag, all_ranks, &handle);
  *request = number_of(handle);
  return error;
}

int probe(int from, int tag, int* is_there, int* bytes, std::intptr_t* message) {
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  const int error = MPI_Improbe(from, tag, all_ranks, is_there, &handle, &status);
  if (error != MPI_SUCCESS || *is_there == 0) return error;
  *message = number_of(handle);
  return MPI_Get_count(&status, MPI_BYTE, bytes);
}

int receive(void* data, int bytes, std::intptr_t message, std::intptr_t* request) {
  auto handle = handle_of<MPI_Message>(message);
  MPI_Request begun = MPI_REQUEST_NULL;
  const int error = MPI_Imrecv(data, bytes, MPI_BYTE, &handle, &begun);
  *request = number_of(begun);
  return error;
}

int test(std::intptr_t* request, int* is_done) {
  auto handle = handle_of<MPI_Request>(*request);
  const int error = MPI_Test(&handle, is_done, MPI_STATUS_IGNORE);
  *request = number_of(handle);
  return error;
}

void text(int error, char* to, int bytes) {
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, words, &length);
  std::snprintf(to, static_cast<std::size_t>(bytes), "%s", words);
}

void end_all(int status) { MPI_Abort(all_ranks, status); }

int finish() {
  if (const int error = MPI_Comm_free(&all_ranks); error != MPI_SUCCESS) return error;
  return is_started ? MPI_Finalize() : MPI_SUCCESS;
}

}  // namespace

extern "C" const thimble::dist::MpiTable* thimble_mpi_table() {
#ifdef OPEN_MPI
  constexpr const char* name = "Open MPI";
#else
  constexpr const char* name = "MPICH";
#endif
  static constexpr thimble::dist::MpiTable table = {name, start, send, probe, receive, test, text, end_all, finish};
  return &table;
}
