#include "data/lerobot/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"

namespace longship::data::lerobot {

namespace {

// Naming the episodes costs a walk over all of them, which is not worth it beyond what is listed.
std::string users_text(const Layout& layout, const Findings& findings,
                       const std::function<bool(const EpisodeRecord&)>& uses) {
  return findings.num_errors() < Findings::kMaxErrorsPerCode ? episodes_text(layout, uses)
                                                             : "further episodes";
}

void check_files(Layout& layout, Findings& findings) {
  std::error_code code;
  const std::string cure = "restore the file, or download the dataset again";
  for (size_t i = 0; i < layout.data_files.size(); ++i) {
    DataFile& file = layout.data_files[i];
    file.exists = std::filesystem::is_regular_file(layout.root / file.path, code);
    if (file.exists) continue;
    const auto uses = [&](const EpisodeRecord& e) {
      return e.data_file == static_cast<int64_t>(i) && e.length > 0;
    };
    findings.error("missing-file", file.path,
                   fmt::format("the table of {} is missing", users_text(layout, findings, uses)),
                   fmt::format("made from data_path \"{}\"", layout.info.data_path), cure);
  }
  for (size_t i = 0; i < layout.video_files.size(); ++i) {
    VideoFile& file = layout.video_files[i];
    file.exists = std::filesystem::is_regular_file(layout.root / file.path, code);
    if (file.exists) continue;
    const auto uses = [&](const EpisodeRecord& e) {
      return e.length > 0 && e.spans[file.camera].file == static_cast<int64_t>(i);
    };
    findings.error(
        "missing-file", file.path,
        fmt::format("the video of camera {} for {} is missing",
                    layout.info.cameras[file.camera].name, users_text(layout, findings, uses)),
        fmt::format("made from video_path \"{}\"", layout.info.video_path), cure);
  }
}

void check_episodes(const Layout& layout, Findings& findings) {
  int64_t previous = -1;
  for (const EpisodeRecord& episode : layout.episodes) {
    const std::string place = fmt::format("episode {}", episode.index);
    if (episode.index == previous) {
      findings.error("duplicate-episode", place, "the metadata list this episode twice", "once");
    }
    if (episode.index < 0 || episode.length < 0) {
      findings.error("episode-range", place,
                     fmt::format("episode_index {} with length {}", episode.index, episode.length),
                     "numbers from 0 up");
    }
    if (episode.length == 0) {
      findings.warn("empty-episode", place, "its length is 0", "it gives no samples",
                    "longship dataset repair leaves it out");
    }
    previous = episode.index;
  }
}

void check_counters(const Layout& layout, Findings& findings) {
  const auto num_episodes = static_cast<int64_t>(layout.episodes.size());
  const std::optional<int64_t>& declared = layout.info.total_episodes;
  if (declared && *declared != num_episodes) {
    findings.warn("counters", "meta/info.json",
                  fmt::format("total_episodes is {}, the data has {}", *declared, num_episodes),
                  "the data are used", "correct the counter, or longship dataset repair");
  }
}

}  // namespace

std::string episodes_text(const Layout& layout,
                          const std::function<bool(const EpisodeRecord&)>& belongs) {
  std::string ranges;
  int64_t count = 0;
  for (size_t i = 0; i < layout.episodes.size(); ++i) {
    if (!belongs(layout.episodes[i])) continue;
    size_t last = i;
    while (last + 1 < layout.episodes.size() && belongs(layout.episodes[last + 1])) ++last;
    count += static_cast<int64_t>(last - i + 1);
    if (ranges.size() < 200) {
      if (!ranges.empty()) ranges += ", ";
      ranges += last == i
                    ? fmt::format("{}", layout.episodes[i].index)
                    : fmt::format("{}..{}", layout.episodes[i].index, layout.episodes[last].index);
    } else if (!ranges.ends_with("...")) {
      ranges += ", ...";
    }
    i = last;
  }
  if (count == 0) return "no episode";
  return fmt::format("{} {}", count == 1 ? "episode" : "episodes", ranges);
}

std::optional<Layout> parse_layout(const std::filesystem::path& root, Findings& findings) {
  Layout layout;
  layout.root = root;
  std::optional<Info> info = read_info(root, findings);
  if (!info) return std::nullopt;
  layout.info = std::move(*info);
  const bool readable =
      layout.is_v3() ? read_layout_v3(layout, findings) : read_layout_v2(layout, findings);
  if (!readable) return std::nullopt;
  std::stable_sort(
      layout.episodes.begin(), layout.episodes.end(),
      [](const EpisodeRecord& a, const EpisodeRecord& b) { return a.index < b.index; });
  return layout;
}

void check_layout(Layout& layout, Findings& findings) {
  check_episodes(layout, findings);
  check_files(layout, findings);
  check_counters(layout, findings);
}

std::optional<Layout> read_layout(const std::filesystem::path& root, Findings& findings) {
  std::optional<Layout> layout = parse_layout(root, findings);
  if (layout) check_layout(*layout, findings);
  return layout;
}

}  // namespace longship::data::lerobot
