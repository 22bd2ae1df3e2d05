#include "data/split.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"

namespace longship::data {

namespace {

// Marks the positions of the listed episodes.
std::vector<bool> listed_positions(const Dataset& dataset, const std::vector<int64_t>& list,
                                   const std::string& key) {
  const std::vector<Episode>& episodes = dataset.episodes();
  std::unordered_map<int64_t, size_t> position_of;
  position_of.reserve(episodes.size());
  for (size_t i = 0; i < episodes.size(); ++i) position_of.emplace(episodes[i].index, i);
  std::vector<bool> chosen(episodes.size());
  for (const int64_t index : list) {
    const auto found = position_of.find(index);
    LS_CHECK(found != position_of.end(), ConfigError,
             "{} names episode {}, which dataset {} does not have ({} episodes, {} .. {})", key,
             index, dataset.root().string(), episodes.size(),
             episodes.empty() ? 0 : episodes.front().index,
             episodes.empty() ? 0 : episodes.back().index);
    if (chosen[found->second]) {
      log::warn("{} names episode {} more than once; it counts once", key, index);
    }
    chosen[found->second] = true;
  }
  return chosen;
}

std::vector<bool> last_positions(const Dataset& dataset, const std::vector<bool>& usable,
                                 int64_t count, const std::string& key) {
  LS_CHECK(count >= 0, ConfigError, "{} is {}; a count must be 0 or more", key, count);
  const std::vector<Episode>& episodes = dataset.episodes();
  std::vector<bool> chosen(episodes.size());
  int64_t found = 0;
  for (size_t i = episodes.size(); i-- > 0 && found < count;) {
    if (!usable[i] || episodes[i].length == 0) continue;
    chosen[i] = true;
    ++found;
  }
  LS_CHECK(found == count, ConfigError,
           "{} is {}, but dataset {} has only {} episodes with samples", key, count,
           dataset.root().string(), found);
  return chosen;
}

}  // namespace

IdRanges id_ranges_of(const Dataset& dataset, const std::vector<int64_t>& episode_positions) {
  IdRanges ids;
  for (const int64_t position : episode_positions) {
    const Episode& episode = dataset.episodes().at(static_cast<size_t>(position));
    ids.append({episode.first_sample, episode.first_sample + episode.length});
  }
  return ids;
}

std::vector<int64_t> sample_ids_of(const Dataset& dataset,
                                   const std::vector<int64_t>& episode_positions) {
  return id_ranges_of(dataset, episode_positions).to_vector();
}

Split split_by_episode(const Dataset& dataset, const config::CountOrList& val,
                       const std::vector<int64_t>& subset, const std::string& key) {
  const size_t num_episodes = dataset.episodes().size();
  const std::vector<bool> usable = subset.empty()
                                       ? std::vector<bool>(num_episodes, true)
                                       : listed_positions(dataset, subset, key + "episodes");
  const std::string val_key = key + "val_episodes";
  const std::vector<bool> held_out = val.is_list
                                         ? listed_positions(dataset, val.list, val_key)
                                         : last_positions(dataset, usable, val.count, val_key);
  Split split;
  for (size_t i = 0; i < num_episodes; ++i) {
    LS_CHECK(usable[i] || !held_out[i], ConfigError,
             "{} names episode {}, which {}episodes leaves out", val_key,
             dataset.episodes()[i].index, key);
    if (!usable[i]) continue;
    (held_out[i] ? split.val_episodes : split.train_episodes).push_back(static_cast<int64_t>(i));
  }
  split.train_ids = id_ranges_of(dataset, split.train_episodes);
  split.val_ids = id_ranges_of(dataset, split.val_episodes);
  LS_CHECK(!split.train_ids.empty(), ConfigError,
           "{} takes all {} episodes of dataset {}, so nothing is left to train on", val_key,
           split.val_episodes.size(), dataset.root().string());
  return split;
}

}  // namespace longship::data
