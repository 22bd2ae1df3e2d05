#include "checkpoint_support.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "io/sharded_state.h"

namespace longship::train::testing {

namespace fs = std::filesystem;

namespace {

const std::vector<std::pair<std::string, std::vector<int64_t>>> kParameters = {
    {"a.weight", {5, 7}}, {"a.bias", {1}}, {"b.weight", {3, 2, 11}}, {"c", {}}, {"none", {0, 4}}};

at::Tensor values(const std::vector<int64_t>& shape, double base) {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  return at::arange(numel, at::TensorOptions().dtype(at::kFloat))
      .mul_(0.37)
      .add_(base)
      .sin_()
      .reshape(shape)
      .contiguous();
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> known_state(int64_t step, bool with_average) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  double base = static_cast<double>(step);
  std::vector<std::string> kinds = {"weights.", "exp_avg.", "exp_avg_sq."};
  if (with_average) kinds.emplace_back("ema.");
  for (const auto& [name, shape] : kParameters) {
    for (const std::string& kind : kinds) out.emplace_back(kind + name, values(shape, base += 1.3));
  }
  return out;
}

SaveParts known_parts(int64_t step, int64_t rank, int64_t world_size, bool with_average) {
  SaveParts parts;
  parts.step = step;
  parts.state = whole_slices(known_state(step, with_average));
  for (const auto& [name, shape] : kParameters) {
    ExportTensor t;
    t.spec = {name, io::DType::kBF16, shape};
    t.source = (with_average ? "ema." : "weights.") + name;
    parts.model.push_back(std::move(t));
  }
  ExportTensor frozen;
  frozen.spec = {"frozen", io::DType::kF32, {3}};
  frozen.literal = at::full({3}, 2.5);
  parts.model.push_back(std::move(frozen));
  TrainerState state;
  state.step = step;
  parts.texts = {{"config.yaml", "step: " + std::to_string(step) + "\n"},
                 {"state/trainer.json", to_json(state)}};
  return share_of(std::move(parts), rank, world_size, "zero1");
}

bool holds_known_state(const fs::path& checkpoint, int64_t step, bool with_average) {
  const io::ShardedState state = io::ShardedState::open(checkpoint / "state");
  const auto expected = known_state(step, with_average);
  if (state.tensors().size() != expected.size()) return false;
  for (const auto& [name, tensor] : expected) {
    const at::Tensor found = at::empty(tensor.sizes(), tensor.options());
    load_slices(state, whole_slices({{name, found}}));
    if (!found.equal(tensor)) return false;
  }
  return true;
}

std::string bytes_of_file(const fs::path& file) {
  return read_file(file, uint64_t{1} << 30);
}

}  // namespace longship::train::testing
