// Ranks over MPI.
//
//   - A receive takes its message by a matched probe, which gives the size before a byte moves. A plain receive of a
//     message that is too large fails, and not every MPI reports the size.
//   - Receives of one rank and tag are matched in order: `waiting` holds the ones whose message has not arrived.
//   - MPI is called by one thread, which is checked.
//   - Given-up messages are tested for another second: MPI may copy straight out of a sender's memory, and a receiver
//     that finds it gone would report that before this rank can report its error. After that this rank's only call of
//     MPI is the abort.

#include <thimble/dist/mpi.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <unistd.h>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/dist/module/table.h>
#include <thimble/dist/transport.h>

namespace thimble::dist {
namespace {

#ifdef THIMBLE_MODULES_FROM_BIN
constexpr const char* modules_from_bin = THIMBLE_MODULES_FROM_BIN;  // from the folder of installed programs
#else
constexpr const char* modules_from_bin = "../lib/thimble";
#endif

constexpr std::size_t piece_bytes = std::size_t{256} << 20;  // MPI counts in int

class MpiTransport final : public Transport {
 public:
  MpiTransport(const MpiTable& mpi, int own_rank, int all_ranks, int most_tag)
      : Transport(own_rank, all_ranks), mpi_(mpi), most_tag_(most_tag) {}

  std::size_t most_bytes() const noexcept override { return piece_bytes; }

  void begin(Exchange& exchange) override {
    check_thread(exchange);
    if (exchange.tag > most_tag_) {
      throw RankError(rank, std::string(exchange.call) + ": " + mpi_.name + " tells " + std::to_string(most_tag_) +
                                " communicators apart, and there have been more");
    }
    for (Part& part : exchange.parts) {
      if (part.is_send) {
        check(part, mpi_.send(part.data, static_cast<int>(part.bytes), part.peer, exchange.tag, &part.request));
        part.state = Part::State::copying;
      } else {
        waiting_[{part.peer, exchange.tag}].push_back(&part);
      }
    }
  }

  bool progress(Exchange& exchange) override {
    check_usable();
    check_thread(exchange);
    for (auto& [from, parts] : waiting_) {
      while (!parts.empty() && is_taken(*parts.front())) parts.erase(parts.begin());
    }
    if (exchange.error) throw RankError(*exchange.error);
    for (Part& part : exchange.parts) {
      if (part.state != Part::State::copying) continue;
      int is_done = 0;
      check(part, mpi_.test(&part.request, &is_done));
      if (is_done == 0) continue;
      part.state = Part::State::done;
      --exchange.open;
    }
    return exchange.open == 0;
  }

  void pause(std::chrono::steady_clock::time_point) override { std::this_thread::yield(); }

  void give_up(Exchange& exchange) noexcept override {
    for (Part& part : exchange.parts) {
      const auto parts = waiting_.find({part.peer, exchange.tag});
      if (parts != waiting_.end()) std::erase(parts->second, &part);
    }
    if (std::this_thread::get_id() != thread_) return;
    if (!last_test_) last_test_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (Part& part : exchange.parts) {
      while (part.state == Part::State::copying && std::chrono::steady_clock::now() < *last_test_) {
        int is_done = 0;
        if (mpi_.test(&part.request, &is_done) != 0) break;
        if (is_done != 0) part.state = Part::State::done;
        std::this_thread::yield();
      }
    }
  }

  [[noreturn]] void end_all(int status) noexcept override {
    // The texts of abort() and of the launcher reach the terminal separately; wait so that the former comes first.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    // MPICH's abort has been seen to spin forever where another rank makes no call. Every launcher notices a rank that
    // a signal ends, and then ends the others.
    std::signal(SIGALRM, SIG_DFL);
    alarm(2);
    mpi_.abort(status);
    std::_Exit(status);
  }

 private:
  /// Begins to receive a message if it has arrived.
  bool is_taken(Part& part) {
    Exchange& exchange = *part.exchange;
    int is_there = 0, bytes = 0;
    std::intptr_t message = 0;
    check(part, mpi_.probe(part.peer, exchange.tag, &is_there, &bytes, &message));
    if (is_there == 0) return false;
    const auto sent = static_cast<std::size_t>(bytes);
    if (sent != part.bytes) {
      exchange.error = size_error(exchange.call, part.peer, sent, rank, part.bytes);
    } else {
      check(part, mpi_.receive(part.data, bytes, message, &part.request));
      part.state = Part::State::copying;
    }
    return true;
  }

  void check(const Part& part, int error) const {
    if (error == 0) return;
    char text[512];
    mpi_.text(error, text, sizeof(text));
    throw RankError(part.peer, std::string(part.exchange->call) + ": rank " + std::to_string(rank) + " and rank " +
                                   std::to_string(part.peer) + ": " + mpi_.name + ": " + text);
  }

  void check_thread(const Exchange& exchange) const {
    if (std::this_thread::get_id() == thread_) return;
    throw RankError(rank,
                    std::string(exchange.call) + ": " + mpi_.name + " is called by a thread that did not start it");
  }

  const MpiTable& mpi_;
  const int most_tag_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::map<std::pair<int, int>, std::vector<Part*>> waiting_;       // of rank and tag
  std::optional<std::chrono::steady_clock::time_point> last_test_;  // of given-up messages
};

/// A launcher's number of ranks; 0 if it is not set. Throws ValueError.
int number(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return 0;
  int count = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, count);
  if (error == std::errc() && stop == end && count > 0) return count;
  throw ValueError(std::string(name) + ": expected a number of ranks, as a launcher sets it, got " + quote(text));
}

/// Folders that may have a module: THIMBLE_MODULES, or the folders of an installation.
std::vector<std::filesystem::path> module_folders() {
  if (const char* const named = std::getenv("THIMBLE_MODULES"); named != nullptr && *named != '\0') return {named};
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<std::filesystem::path> folders{program, program / modules_from_bin};
  Dl_info library;
  if (dladdr(reinterpret_cast<const void*>(&module_folders), &library) != 0 && library.dli_fname != nullptr) {
    const auto folder = std::filesystem::path(library.dli_fname).parent_path();
    if (folder != program) folders.insert(folders.end(), {folder, folder / "thimble"});
  }
  return folders;
}

/// The first existing module of the launch. It stays loaded.
const MpiTable& load_module(const Launch& launch) {
  std::string tried;
  for (const std::string& name : launch.modules) {
    for (const std::filesystem::path& folder : module_folders()) {
      const std::filesystem::path path = folder / name;
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) {
        tried += (tried.empty() ? "" : ", ") + path.string();
        continue;
      }
      void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);  // MPI's own plugins look for its symbols
      void* const table = module == nullptr ? nullptr : dlsym(module, "thimble_mpi_table");
      if (table == nullptr) throw DeviceError("MPI: " + std::string(dlerror()));
      return *reinterpret_cast<MpiTableFunction>(table)();
    }
  }
  throw DeviceError("MPI: " + launch.launcher + " started " + std::to_string(launch.ranks) +
                    " ranks, and there is no module for it: " + tried +
                    ". It is built where CMake finds this MPI; THIMBLE_MODULES names its folder");
}

}  // namespace

std::optional<Launch> find_launch() {
  const std::string open = "thimble_openmpi.so", mpich = "thimble_mpich.so";
  if (const int ranks = number("OMPI_COMM_WORLD_SIZE"); ranks > 0) return Launch{ranks, "mpirun of Open MPI", {open}};
  if (const int ranks = number("PMI_SIZE"); ranks > 0) return Launch{ranks, "mpirun of MPICH", {mpich}};
  // A batch script of SLURM is no rank; a step of several tasks is.
  if (const int ranks = number("SLURM_STEP_NUM_TASKS"); ranks > 1 && std::getenv("SLURM_PROCID") != nullptr) {
    const bool has_pmix = std::getenv("PMIX_RANK") != nullptr;
    return Launch{ranks, "srun", has_pmix ? std::vector{open, mpich} : std::vector{mpich, open}};
  }
  return std::nullopt;
}

void run_launched(const std::function<void(Communicator&)>& body, int (*status_of)(const std::exception_ptr&)) {
  const std::optional<Launch> launch = find_launch();
  if (!launch)
    throw DeviceError("MPI: this process was started by no launcher; start ranks by mpirun, mpiexec or srun");
  const MpiTable& mpi = load_module(*launch);
  int rank = 0, size = 0, most_tag = 0;
  if (const int error = mpi.start(&rank, &size, &most_tag); error != 0) {
    char text[512];
    mpi.text(error, text, sizeof(text));
    throw DeviceError(std::string(mpi.name) + " does not start: " + text);
  }
  if (size != launch->ranks) {
    throw DeviceError(std::string(mpi.name) + " finds " + std::to_string(size) + " ranks where " + launch->launcher +
                      " started " + std::to_string(launch->ranks) + ": the launcher is another MPI's, or has no PMI");
  }
  Communicator all(std::make_shared<MpiTransport>(mpi, rank, size, most_tag));
  try {
    body(all);
    all.barrier();  // or a destructor's error
  } catch (const std::exception& error) {
    all.abort(error.what(), status_of(std::current_exception()));
  } catch (...) {
    all.abort("an exception that is no std::exception", status_of(std::current_exception()));
  }
  if (mpi.finish() != 0) throw DeviceError(std::string(mpi.name) + " does not end");
}

}  // namespace thimble::dist
