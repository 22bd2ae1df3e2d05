#pragma once
// The first conversation over the store: is everybody there, and does everybody mean the same run?

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dist/store.h"

namespace longship::dist {

struct HandshakeOptions {
  int64_t rank = 0, world_size = 1;
  double timeout_s = 300;
  std::vector<std::pair<std::string, std::string>> facts;  // equal on all ranks
  std::string note;  // added to the message about ranks that did not come
};

/// Rank 0 collects, compares and decides; the others wait for its verdict, at most 5 s longer than
/// rank 0 waits. Returns on every rank when all fit; otherwise throws the same message on every
/// rank that came: ConfigError when facts differ or a rank exists twice, PeerError when ranks are
/// missing or rank 0 went away.
void shake_hands(KeyStore& store, const HandshakeOptions& options);

}  // namespace longship::dist
