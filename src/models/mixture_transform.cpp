#include <fmt/core.h>

#include "base/error.h"
#include "data/mixture.h"
#include "models/spec.h"

namespace longship::models {
namespace {

using Parts = std::vector<std::pair<std::string, std::unique_ptr<Transform>>>;

class MixtureTransform final : public Transform {
 public:
  explicit MixtureTransform(Parts parts);
  data::WindowSpec windows() const override;
  std::unique_ptr<Item> prepare(const data::RawSample& sample) const override;
  std::unique_ptr<Batch> collate(std::span<const std::unique_ptr<Item>> items) const override;
  at::Tensor denormalise_actions(const at::Tensor& actions, const Batch* observed) const override;
  std::map<std::string, data::FeatureStats> own_stats() const override;
  std::vector<std::pair<std::string, std::string>> checkpoint_files(
      std::span<const Described> parts) const override;
  void check_dataset(const data::Dataset& dataset) const override;

 private:
  Parts parts_;
};

MixtureTransform::MixtureTransform(Parts parts) : parts_(std::move(parts)) {
  LS_CHECK(!parts_.empty(), InternalError, "a mixture of no transforms");
}

data::WindowSpec MixtureTransform::windows() const {
  data::WindowSpec out;
  for (const auto& [name, transform] : parts_) {
    const data::WindowSpec own = transform->windows();
    for (const auto& [column, offsets] : own.columns) {
      const auto [slot, is_new] = out.columns.emplace(column, offsets);
      LS_CHECK(is_new || slot->second == offsets, InternalError,
               "two datasets of a mixture read '{}' over different windows", column);
    }
    for (const auto& [camera, offsets] : own.cameras) {
      const auto [slot, is_new] = out.cameras.emplace(camera, offsets);
      LS_CHECK(is_new || slot->second == offsets, ConfigError,
               "two datasets of a mixture show '{}' over different frames; name one modality for "
               "both in model.modality",
               camera);
    }
  }
  return out;
}

std::unique_ptr<Transform::Item> MixtureTransform::prepare(const data::RawSample& sample) const {
  const auto& [name, transform] = parts_.at(static_cast<size_t>(sample.dataset));
  try {
    return transform->prepare(sample);
  } catch (const DataError& error) {
    throw DataError(fmt::format("[{}] {}", name, error.what()));
  }
}

std::unique_ptr<Batch> MixtureTransform::collate(
    std::span<const std::unique_ptr<Item>> items) const {
  return parts_.front().second->collate(items);
}

at::Tensor MixtureTransform::denormalise_actions(const at::Tensor&, const Batch*) const {
  throw InternalError("actions of a mixture have the units of one of its datasets");
}

/// Under the names that MixtureDataset::stats() uses.
std::map<std::string, data::FeatureStats> MixtureTransform::own_stats() const {
  std::map<std::string, data::FeatureStats> out;
  for (const auto& [name, transform] : parts_) {
    for (const auto& [key, stats] : transform->own_stats()) out[name + "/" + key] = stats;
  }
  return out;
}

/// Given the mixture alone, with all statistics under the names that it uses.
std::vector<std::pair<std::string, std::string>> MixtureTransform::checkpoint_files(
    std::span<const Described> parts) const {
  LS_CHECK(parts.size() == 1 && parts.front().transform == this, InternalError,
           "a mixture inside of a mixture");
  std::vector<Described> described;
  for (const auto& [name, transform] : parts_) {
    described.push_back({transform.get(), {}});
    for (const auto& [key, stats] : parts.front().stats) {
      if (key.starts_with(name + "/")) {
        described.back().stats[key.substr(name.size() + 1)] = stats;
      }
    }
  }
  return parts_.front().second->checkpoint_files(described);
}

void MixtureTransform::check_dataset(const data::Dataset& dataset) const {
  const auto* mixture = dynamic_cast<const data::MixtureDataset*>(&dataset);
  LS_CHECK(mixture != nullptr && mixture->parts().size() == parts_.size(), InternalError,
           "a mixture's transform is to check another dataset");
  std::string faults;
  for (size_t p = 0; p < parts_.size(); ++p) {
    try {
      parts_[p].second->check_dataset(*mixture->parts()[p].dataset);
    } catch (const DataError& error) {
      faults += fmt::format("{}[{}] {}", faults.empty() ? "" : "\n", parts_[p].first, error.what());
    }
  }
  if (!faults.empty()) throw DataError(faults);
}

}  // namespace

std::unique_ptr<Transform> make_mixture_transform(Parts parts) {
  return std::make_unique<MixtureTransform>(std::move(parts));
}

}  // namespace longship::models
