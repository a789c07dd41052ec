#pragma once
// Links between ranks, for planning.

#include <span>
#include <string>
#include <string_view>

namespace thimble::dist {

/// A kind of link. Each rank has a separate one.
struct Link {
  std::string name;
  std::string source;      ///< of the rate
  double bytes_per_s = 0;  ///< each way, for large messages: four fifths of the source's figure
  double message_s = 0;    ///< additional time per message. A guess: it was never measured
};

/// Known links, the fastest first. Throws ValueError, listing all names, for an unknown one.
std::span<const Link> link_list();
const Link& link(std::string_view name);

}  // namespace thimble::dist
