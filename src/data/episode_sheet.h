#pragma once
// One episode at a glance: pictures of every camera over curves of state and action.

#include <cstdint>
#include <string>

#include "data/dataset.h"

namespace longship::data {

struct SheetOptions {
  int64_t pictures = 8;  // per camera, evenly spread, first and last frame included
  std::string state = "observation.state", action = "action";
};

/// A complete SVG document with the pictures inside. `position` counts episodes from 0. Throws
/// DataError when a picture cannot be read, and for an empty episode.
std::string episode_sheet(const Dataset& dataset, int64_t position, const SheetOptions& options);

}  // namespace longship::data
