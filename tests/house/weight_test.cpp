// Headers stay light: counts the lines and bytes that one include costs the compiler, and names heavy headers.

#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "sources.h"
#include "support/catch.h"

namespace {

/// The preprocessor's output for one header.
struct Weight {
  std::set<std::string> headers;  // everything it includes, as paths
  std::size_t own_lines = 0;      // not blank, from this project's headers
  std::size_t all_lines = 0;
  std::size_t all_bytes = 0;
};

Weight weigh(const std::string& include) {
  const std::string source = std::string(THIMBLE_HOUSE_DIR) + "/weight.cpp";
  std::ofstream(source) << "#include <" << include << ">\n";
  const std::string command =
      std::string("\"" THIMBLE_HOUSE_CXX "\" -std=c++20 -E -I \"" THIMBLE_HOUSE_INCLUDE "\" \"") + source + "\"";
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[1 << 16];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  INFO(command);
  REQUIRE(pclose(pipe) == 0);

  Weight weight;
  std::istringstream in(text);
  bool is_own = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("# ")) {  // # LINE "PATH" FLAGS
      const std::size_t open = line.find('"');
      const std::string path = line.substr(open + 1, line.rfind('"') - open - 1);
      is_own = path.find("include/thimble/") != std::string::npos;
      weight.headers.insert(path);
    } else if (line.find_first_not_of(" \t") != std::string::npos) {
      weight.own_lines += is_own ? 1 : 0;
      weight.all_lines += 1;
      weight.all_bytes += line.size() + 1;
    }
  }
  return weight;
}

/// The paths among `headers` whose file is one of the words of `names`, or whose folder is: such a word ends in a
/// slash.
std::vector<std::string> named(const std::set<std::string>& headers, const std::string& names) {
  std::istringstream words(names);
  std::vector<std::string> found;
  for (std::string name; words >> name;) {
    for (const std::string& path : headers) {
      const bool is_here =
          name.ends_with('/') ? path.find("/" + name) != std::string::npos : path.ends_with("/" + name);
      if (is_here) found.push_back(path);
    }
  }
  return found;
}

void check_none(const std::set<std::string>& headers, const std::string& names) {
  const std::vector<std::string> heavy = named(headers, names);
  INFO(house::lines(heavy));
  CHECK(heavy.empty());
}

}  // namespace

TEST_CASE("weight: core/tensor/tensor.h pulls in no operators, streams, threads or guests", "[house]") {
  const Weight weight = weigh("thimble/core/tensor/tensor.h");
  check_none(weight.headers,
             "iostream fstream sstream functional regex thread mutex future map unordered_map "
             "algorithm ranges chrono filesystem nlohmann/ zlib.h utf8proc.h cuda_runtime.h thimble/core/ops/ "
             "thimble/core/kernels/ thimble/memory/ thimble/autograd/ thimble/nn/");
  // Measured with GCC 12: 440 own lines, 40,200 lines and 1.37 MB in all, nearly all from <memory> and <string>.
  INFO("own lines " << weight.own_lines << ", all lines " << weight.all_lines << ", bytes " << weight.all_bytes);
  CHECK(weight.own_lines > 100);
  CHECK(weight.own_lines < 550);
  CHECK(weight.all_lines < 45000);
  CHECK(weight.all_bytes < 1500000);
}

TEST_CASE("weight: autograd/tape.h pulls in no operators and nothing from behind the tape", "[house]") {
  const Weight weight = weigh("thimble/autograd/tape.h");
  check_none(weight.headers,
             "functional mutex map unordered_map algorithm chrono thimble/core/ops/ "
             "thimble/core/kernels/ thimble/memory/ thimble/autograd/node.h thimble/autograd/apply.h "
             "thimble/autograd/engine/");
  // Measured with GCC 12: 670 own lines, of which core/tensor/tensor.h has 420.
  INFO("own lines " << weight.own_lines << ", all lines " << weight.all_lines << ", bytes " << weight.all_bytes);
  CHECK(weight.own_lines > 100);
  CHECK(weight.own_lines < 850);
}

TEST_CASE("weight: thimble.h pulls in no heavy headers of the standard library and no formulas", "[house]") {
  const Weight weight = weigh("thimble/thimble.h");
  // <cmath>, because of its special functions, takes as long as all of autograd/.
  check_none(weight.headers,
             "iostream fstream sstream regex thread mutex condition_variable future algorithm ranges "
             "chrono filesystem cmath random variant set deque list nlohmann/ zlib.h utf8proc.h cuda_runtime.h "
             "thimble/core/kernels/functors/unary.h thimble/core/kernels/functors/binary.h "
             "thimble/autograd/engine/ thimble/models/models.h");
  // Measured with GCC 12: 7,568 own lines, 62,800 lines and 2.18 MB in all; a second of processor time.
  INFO("own lines " << weight.own_lines << ", all lines " << weight.all_lines << ", bytes " << weight.all_bytes);
  CHECK(weight.own_lines > 1000);
  CHECK(weight.own_lines < 7570);
  CHECK(weight.all_lines < 64000);
  CHECK(weight.all_bytes < 2250000);
}

TEST_CASE("weight: the check finds what it is for", "[house]") {
  const Weight weight = weigh("iostream");
  CHECK(named(weight.headers, "iostream").size() == 1);
  CHECK(named(weight.headers, "bits/").size() > 1);
  CHECK(named(weight.headers, "regex").empty());
}
