#include "data/validate.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "data/lerobot/check_deep.h"
#include "data/lerobot/opened.h"

namespace longship::data {

int64_t Validation::count(Severity severity) const {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return finding.severity == severity; });
}

Validation validate_dataset(const std::filesystem::path& root, const ValidateOptions& options) {
  Findings findings;
  Validation out;
  const std::optional<lerobot::Opened> opened = lerobot::inspect(root, options.open, findings);
  if (opened) {
    const int64_t threads = options.threads > 0
                                ? options.threads
                                : std::max<int64_t>(1, std::thread::hardware_concurrency());
    out.format = opened->layout.info.version_text;
    for (const lerobot::EpisodeRecord& episode : opened->layout.episodes) {
      ++out.num_episodes;
      out.num_frames += std::max<int64_t>(0, episode.length);
    }
    lerobot::check_unused_files(opened->layout, findings);
    lerobot::check_task_texts(*opened, findings);
    lerobot::check_tables(*opened, threads, findings);
    const auto pixels = lerobot::check_pictures(*opened, threads, options.progress, findings);
    for (const auto& [camera, found] : pixels) out.num_decoded += found.num_frames;
    lerobot::check_stored_stats(*opened, pixels, findings);
  }
  out.findings = findings.list();
  return out;
}

std::string validation_json(const std::filesystem::path& root, const Validation& validation) {
  nlohmann::ordered_json out;
  out["path"] = root.string();
  out["format"] = validation.format;
  out["episodes"] = validation.num_episodes;
  out["frames"] = validation.num_frames;
  out["frames_decoded"] = validation.num_decoded;
  out["errors"] = validation.count(Severity::kError);
  out["warnings"] = validation.count(Severity::kWarn);
  out["notes"] = validation.count(Severity::kInfo);
  out["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : validation.findings) {
    out["findings"].push_back({{"severity", severity_name(finding.severity)},
                               {"code", finding.code},
                               {"place", finding.place},
                               {"fact", finding.fact},
                               {"expected", finding.expected},
                               {"cure", finding.cure}});
  }
  // Names and texts of damaged files may hold any bytes.
  return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace longship::data
