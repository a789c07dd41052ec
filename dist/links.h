#pragma once
// What connects ranks, as planning sees it.

#include <span>
#include <string>
#include <string_view>

namespace thimble::dist {

/// A kind of link. Each rank has one of its own.
struct Link {
  std::string name;
  std::string source;      ///< of the rate
  double bytes_per_s = 0;  ///< each way, that large messages reach: four fifths of the source's figure
  double message_s = 0;    ///< that a message takes besides. A guess: it was measured nowhere
};

/// Known links, the fastest first. Throws ValueError, listing all names, for another one.
std::span<const Link> link_list();
const Link& link(std::string_view name);

}  // namespace thimble::dist
