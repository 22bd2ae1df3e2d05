#include "data/packing.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace longship::data {

void PackOptions::check() const {
  LS_CHECK(token_budget >= 1 && token_budget <= INT32_MAX, ConfigError,
           "packing: token_budget {} must be from 1 to 2^31 - 1", token_budget);
  LS_CHECK(max_pictures >= 0, ConfigError, "packing: max_pictures {} must be >= 0 (0: no bound)",
           max_pictures);
  LS_CHECK(window >= 1, ConfigError, "packing: window {} must be at least 1 sample", window);
}

Packer::Packer(PackOptions options, std::function<PackItem(int64_t position)> measure,
               int64_t num_samples, PackerState state)
    : options_((options.check(), options)),
      measure_(std::move(measure)),
      num_samples_(num_samples),
      state_(std::move(state)) {}

bool Packer::fits_alone(const PackItem& item) const {
  return item.tokens <= options_.token_budget &&
         (options_.max_pictures == 0 || item.pictures <= options_.max_pictures);
}

void Packer::look_ahead() {
  while (static_cast<int64_t>(state_.waiting.size()) < options_.window &&
         (num_samples_ < 0 || state_.next_position < num_samples_)) {
    const PackItem item = measure_(state_.next_position);
    LS_CHECK(
        item.tokens >= 1 && item.pictures >= 0 && item.labels >= 0 && item.labels <= item.tokens,
        DataError, "packing: sample {} has {} tokens, {} pictures and {} labels", item.sample_id,
        item.tokens, item.pictures, item.labels);
    if (!fits_alone(item)) {
      LS_CHECK(options_.skip_too_long, DataError,
               "packing: sample {} has {} tokens and {} pictures, a pack holds {} tokens and {} "
               "pictures; raise the budget, shorten the sample, or let such samples be skipped",
               item.sample_id, item.tokens, item.pictures, options_.token_budget,
               options_.max_pictures == 0 ? std::string("any number of")
                                          : std::to_string(options_.max_pictures));
      ++state_.num_skipped;
      ++state_.next_position;
      continue;
    }
    state_.waiting.push_back(item);
    ++state_.next_position;
  }
}

Pack Packer::next() {
  look_ahead();
  Pack pack;
  std::vector<PackItem> rest;
  for (const PackItem& item : state_.waiting) {
    const bool fits =
        pack.tokens + item.tokens <= options_.token_budget &&
        (options_.max_pictures == 0 || pack.pictures + item.pictures <= options_.max_pictures);
    if (!fits) {
      rest.push_back(item);
      continue;
    }
    pack.items.push_back(item);
    pack.tokens += item.tokens;
    pack.pictures += item.pictures;
  }
  state_.waiting = std::move(rest);
  if (!pack.items.empty()) ++state_.num_packs;
  return pack;
}

PackLayout make_pack_layout(const Pack& pack, int64_t rows) {
  LS_CHECK(pack.tokens <= rows && rows <= INT32_MAX, ShapeError,
           "packing: {} tokens do not fit {} rows", pack.tokens, rows);
  PackLayout out;
  out.cu_seqlens = {0};
  out.cu_pictures = {0};
  out.segment_ids.reserve(static_cast<size_t>(rows));
  out.position_ids.reserve(static_cast<size_t>(rows));
  for (size_t s = 0; s < pack.items.size(); ++s) {
    const PackItem& item = pack.items[s];
    for (int64_t t = 0; t < item.tokens; ++t) {
      out.segment_ids.push_back(static_cast<int32_t>(s) + 1);
      out.position_ids.push_back(t);
    }
    out.cu_seqlens.push_back(out.cu_seqlens.back() + static_cast<int32_t>(item.tokens));
    out.cu_pictures.push_back(out.cu_pictures.back() + static_cast<int32_t>(item.pictures));
    out.longest = std::max(out.longest, item.tokens);
  }
  LS_CHECK(out.cu_seqlens.back() == pack.tokens, ShapeError,
           "packing: the samples of a pack have {} tokens, the pack says {}", out.cu_seqlens.back(),
           pack.tokens);
  out.segment_ids.resize(static_cast<size_t>(rows), 0);
  out.position_ids.resize(static_cast<size_t>(rows), 0);
  return out;
}

std::vector<std::vector<double>> pack_loss_weights(std::span<const Pack> packs, LossMean mean) {
  int64_t labels = 0, samples = 0;
  for (const Pack& pack : packs) {
    for (const PackItem& item : pack.items) {
      labels += item.labels;
      samples += item.labels > 0 ? 1 : 0;
    }
  }
  LS_CHECK(labels > 0, DataError,
           "packing: no token of the step has a label, the loss is undefined");
  std::vector<std::vector<double>> out;
  for (const Pack& pack : packs) {
    std::vector<double>& weights = out.emplace_back();
    for (const PackItem& item : pack.items) {
      if (item.labels == 0) {
        weights.push_back(0);
      } else if (mean == LossMean::kTokens) {
        weights.push_back(1.0 / static_cast<double>(labels));
      } else {
        weights.push_back(1.0 / (static_cast<double>(samples) * static_cast<double>(item.labels)));
      }
    }
  }
  return out;
}

std::string to_json(const PackerState& state) {
  nlohmann::ordered_json out;
  out["next_position"] = state.next_position;
  out["num_packs"] = state.num_packs;
  out["num_skipped"] = state.num_skipped;
  out["waiting"] = nlohmann::ordered_json::array();
  for (const PackItem& i : state.waiting) {
    out["waiting"].push_back({i.position, i.sample_id, i.tokens, i.pictures, i.labels});
  }
  return out.dump();
}

PackerState parse_packer_state(std::string_view json, std::string_view name) {
  const nlohmann::json in = parse_json_text(json, name, {.code = ExitCode::kCheckpoint});
  PackerState out;
  try {
    out.next_position = in.at("next_position").get<int64_t>();
    out.num_packs = in.at("num_packs").get<int64_t>();
    out.num_skipped = in.at("num_skipped").get<int64_t>();
    for (const auto& item : in.at("waiting")) {
      const auto n = item.get<std::vector<int64_t>>();
      LS_CHECK(n.size() == 5, CheckpointError, "{}: a waiting sample has {} numbers, expected 5",
               name, n.size());
      out.waiting.push_back({n[0], n[1], n[2], n[3], n[4]});
    }
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: not the state of a packer: {}", name, error.what()));
  }
  return out;
}

}  // namespace longship::data
