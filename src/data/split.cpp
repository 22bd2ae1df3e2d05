#include "data/split.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace longship::data {

namespace {

std::set<int64_t> listed_positions(const Dataset& dataset, const std::vector<int64_t>& list) {
  std::map<int64_t, int64_t> position_of;
  const std::vector<Episode>& episodes = dataset.episodes();
  for (size_t i = 0; i < episodes.size(); ++i) {
    position_of[episodes[i].index] = static_cast<int64_t>(i);
  }
  std::set<int64_t> chosen;
  for (const int64_t index : list) {
    const auto found = position_of.find(index);
    LS_CHECK(
        found != position_of.end(), ConfigError,
        "data.val_episodes names episode {}, which dataset {} does not have (episodes {} .. {})",
        index, dataset.root().string(), position_of.begin()->first, position_of.rbegin()->first);
    if (!chosen.insert(found->second).second) {
      log::warn("data.val_episodes names episode {} more than once; it counts once", index);
    }
  }
  return chosen;
}

std::set<int64_t> last_positions(const Dataset& dataset, int64_t count) {
  LS_CHECK(count >= 0, ConfigError, "data.val_episodes is {}; a count must be 0 or more", count);
  std::set<int64_t> chosen;
  const std::vector<Episode>& episodes = dataset.episodes();
  for (auto i = static_cast<int64_t>(episodes.size()) - 1;
       i >= 0 && static_cast<int64_t>(chosen.size()) < count; --i) {
    if (episodes[static_cast<size_t>(i)].length > 0) chosen.insert(i);
  }
  LS_CHECK(static_cast<int64_t>(chosen.size()) == count, ConfigError,
           "data.val_episodes is {}, but dataset {} has only {} episodes with samples", count,
           dataset.root().string(), chosen.size());
  return chosen;
}

}  // namespace

std::vector<int64_t> sample_ids_of(const Dataset& dataset,
                                   const std::vector<int64_t>& episode_positions) {
  std::vector<int64_t> ids;
  for (const int64_t position : episode_positions) {
    const Episode& episode = dataset.episodes().at(static_cast<size_t>(position));
    for (int64_t frame = 0; frame < episode.length; ++frame) {
      ids.push_back(episode.first_sample + frame);
    }
  }
  return ids;
}

Split split_by_episode(const Dataset& dataset, const config::CountOrList& val) {
  const std::set<int64_t> chosen =
      val.is_list ? listed_positions(dataset, val.list) : last_positions(dataset, val.count);
  Split split;
  for (int64_t i = 0; i < static_cast<int64_t>(dataset.episodes().size()); ++i) {
    (chosen.contains(i) ? split.val_episodes : split.train_episodes).push_back(i);
  }
  split.train_ids = sample_ids_of(dataset, split.train_episodes);
  split.val_ids = sample_ids_of(dataset, split.val_episodes);
  LS_CHECK(!split.train_ids.empty(), ConfigError,
           "data.val_episodes takes all {} episodes of dataset {}, so nothing is left to train on",
           chosen.size(), dataset.root().string());
  return split;
}

}  // namespace longship::data
