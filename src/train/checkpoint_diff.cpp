// Comparing two checkpoints tensor by tensor.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "base/error.h"
#include "io/sharded_state.h"
#include "io/tensor_io.h"
#include "io/weights.h"
#include "train/checkpoint_state.h"
#include "train/checkpoint_tools.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

/// Tensors by name, read in ranges.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::map<std::string, io::TensorSpec> specs() const = 0;
  virtual void read(const std::string& name, int64_t begin, int64_t end, void* out) const = 0;
};

// Names from the mapped headers, bytes read in ranges, so that memory stays bounded.
class WeightsSource : public Source {
 public:
  explicit WeightsSource(const fs::path& path) : weights_(io::open_weights(path)) {
    for (const io::SafetensorsFile& file : weights_.files()) {
      files_.emplace(file.path(), io::SafetensorsRanges::open(file.path()));
    }
  }
  std::map<std::string, io::TensorSpec> specs() const override {
    std::map<std::string, io::TensorSpec> out;
    for (const io::TensorInfo& t : weights_.tensors()) out[t.name] = {t.name, t.dtype, t.shape};
    return out;
  }
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    const io::TensorInfo& info = weights_.at(name);
    const auto width = static_cast<uint64_t>(io::dtype_bytes(info.dtype));
    files_.at(weights_.file_of(info))
        .read(info, static_cast<uint64_t>(begin) * width,
              static_cast<uint64_t>(end - begin) * width, out);
  }

 private:
  io::Weights weights_;
  std::map<fs::path, io::SafetensorsRanges> files_;
};

class StateSource : public Source {
 public:
  explicit StateSource(const fs::path& folder) : state_(io::ShardedState::open(folder)) {}
  std::map<std::string, io::TensorSpec> specs() const override {
    std::map<std::string, io::TensorSpec> out;
    for (const io::ShardedTensor& t : state_.tensors()) out[t.name] = {t.name, t.dtype, t.shape};
    return out;
  }
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    state_.read(state_.at(name), begin, end, out);
  }

 private:
  io::ShardedState state_;
};

std::string describe(const io::TensorSpec& spec) {
  return fmt::format("[{}] {}", fmt::join(spec.shape, ", "), io::dtype_name(spec.dtype));
}

int64_t numel_of(const io::TensorSpec& spec) {
  int64_t numel = 1;
  for (const int64_t dim : spec.shape) numel *= dim;
  return numel;
}

/// Two tensors of one shape.
class Comparison {
 public:
  Comparison(const Source& a, const Source& b) : a_(a), b_(b) {}

  void run(const io::TensorSpec& spec_a, const io::TensorSpec& spec_b, TensorDiff& out,
           const std::function<void(uint64_t)>& done) {
    const bool same_dtype = spec_a.dtype == spec_b.dtype;
    const int64_t numel = numel_of(spec_a);
    out.numel = numel;
    for (int64_t begin = 0; begin < numel; begin += kPieceElements) {
      const int64_t count = std::min(kPieceElements, numel - begin);
      const at::Tensor left = piece(a_, spec_a, begin, count),
                       right = piece(b_, spec_b, begin, count);
      done(static_cast<uint64_t>(left.nbytes() + right.nbytes()));
      if (same_dtype &&
          std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0) {
        continue;
      }
      compare(left, right, same_dtype, out);
    }
    if (!same_dtype) {
      out.kind = TensorDiff::Kind::kOtherDtype;
    } else if (out.num_unequal > 0) {
      out.kind = TensorDiff::Kind::kDiffers;
    }
  }

 private:
  static at::Tensor piece(const Source& source, const io::TensorSpec& spec, int64_t begin,
                          int64_t count) {
    at::Tensor out = at::empty({count}, at::TensorOptions().dtype(io::to_scalar_type(spec.dtype)));
    source.read(spec.name, begin, begin + count, out.mutable_data_ptr());
    return out;
  }

  // In double, where every dtype but 64-bit integers is exact. With one dtype, elements with equal
  // values and different bits (0 and -0, two NaNs) count as unequal.
  static void compare(const at::Tensor& left, const at::Tensor& right, bool bits, TensorDiff& out) {
    const at::Tensor a = left.to(at::kDouble), b = right.to(at::kDouble);
    const auto* x = a.const_data_ptr<double>();
    const auto* y = b.const_data_ptr<double>();
    const auto width = static_cast<size_t>(left.element_size());
    const auto* p = static_cast<const std::byte*>(left.const_data_ptr());
    const auto* q = static_cast<const std::byte*>(right.const_data_ptr());
    for (int64_t i = 0; i < a.numel(); ++i) {
      const auto at = static_cast<size_t>(i) * width;
      const bool both_nan = std::isnan(x[i]) && std::isnan(y[i]);
      const bool equal = bits ? std::memcmp(p + at, q + at, width) == 0 : both_nan || x[i] == y[i];
      if (equal) continue;
      ++out.num_unequal;
      if (both_nan || x[i] == y[i]) continue;
      const double distance = std::abs(x[i] - y[i]);  // NaN stays once it is there
      if (std::isnan(distance) || distance > out.max_abs) out.max_abs = distance;
    }
  }

  const Source &a_, &b_;
};

struct Part {
  std::string name;
  std::unique_ptr<Source> a, b;
};

std::vector<Part> parts_of(const fs::path& a, const fs::path& b) {
  const auto place = [](const fs::path& path) {
    return fs::is_regular_file(path) ? path : resolve_checkpoint(path);
  };
  const fs::path left = place(a), right = place(b);
  std::vector<Part> parts;
  parts.push_back(
      {"model", std::make_unique<WeightsSource>(left), std::make_unique<WeightsSource>(right)});
  // Weights files, and public checkpoints, have no state.
  if (fs::is_directory(left / "state") && fs::is_directory(right / "state")) {
    parts.push_back({"state", std::make_unique<StateSource>(left / "state"),
                     std::make_unique<StateSource>(right / "state")});
  }
  return parts;
}

}  // namespace

std::string_view to_string(TensorDiff::Kind kind) {
  switch (kind) {
    case TensorDiff::Kind::kEqual:
      return "equal";
    case TensorDiff::Kind::kDiffers:
      return "differs";
    case TensorDiff::Kind::kOtherDtype:
      return "dtype";
    case TensorDiff::Kind::kOtherShape:
      return "shape";
    case TensorDiff::Kind::kOnlyA:
      return "only in A";
    case TensorDiff::Kind::kOnlyB:
      return "only in B";
  }
  return "";
}

std::vector<TensorDiff> diff_checkpoints(const fs::path& a, const fs::path& b,
                                         const BytesProgress& progress) {
  const std::vector<Part> parts = parts_of(a, b);
  struct Pair {
    const Part* part;
    io::TensorSpec a, b;
    size_t place;
  };
  std::vector<TensorDiff> out;
  std::vector<Pair> pairs;
  uint64_t total = 0, done = 0;
  for (const Part& part : parts) {
    const auto left = part.a->specs(), right = part.b->specs();
    std::map<std::string, int> names;
    for (const auto& [name, spec] : left) names[name] |= 1;
    for (const auto& [name, spec] : right) names[name] |= 2;
    for (const auto& [name, sides] : names) {
      TensorDiff d;
      d.part = part.name;
      d.name = name;
      if ((sides & 1) != 0) d.a = describe(left.at(name));
      if ((sides & 2) != 0) d.b = describe(right.at(name));
      if (sides == 1) d.kind = TensorDiff::Kind::kOnlyA;
      if (sides == 2) d.kind = TensorDiff::Kind::kOnlyB;
      if (sides == 3) {
        const io::TensorSpec &x = left.at(name), &y = right.at(name);
        if (x.shape != y.shape) {
          d.kind = TensorDiff::Kind::kOtherShape;
        } else {
          pairs.push_back({&part, x, y, out.size()});
          total += static_cast<uint64_t>(numel_of(x)) *
                   static_cast<uint64_t>(io::dtype_bytes(x.dtype) + io::dtype_bytes(y.dtype));
        }
      }
      out.push_back(std::move(d));
    }
  }
  for (const Pair& pair : pairs) {
    Comparison(*pair.part->a, *pair.part->b)
        .run(pair.a, pair.b, out[pair.place], [&](uint64_t bytes) {
          done += bytes;
          if (progress) progress(done, total);
        });
  }
  return out;
}

}  // namespace longship::train
