#include "models/pi05/batch.h"

#include <fmt/ranges.h>

#include <numeric>

#include "base/error.h"
#include "data/augment/picture.h"

namespace longship::models {
namespace {

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void expect(const at::Tensor& tensor, const char* name, at::ScalarType dtype,
            const std::vector<int64_t>& shape) {
  bool fits = tensor.defined() && tensor.scalar_type() == dtype &&
              tensor.dim() == static_cast<int64_t>(shape.size());
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] < 0 || tensor.size(static_cast<int64_t>(i)) == shape[i];  // -1: any
  }
  if (fits) return;
  const std::string found = tensor.defined()
                                ? fmt::format("{} of shape {}", c10::toString(tensor.scalar_type()),
                                              fmt::join(tensor.sizes(), "x"))
                                : std::string("undefined");
  throw ShapeError(fmt::format("Pi05 batch: '{}' is {}, expected {} of shape {} (-1: any)", name,
                               found, c10::toString(dtype), fmt::join(shape, "x")));
}

/// Counts of true values per row of a [B, N] bool mask.
std::vector<int64_t> row_counts(const at::Tensor& mask) {
  const at::Tensor host = mask.to(at::kCPU).contiguous();
  const bool* values = host.const_data_ptr<bool>();
  std::vector<int64_t> counts(static_cast<size_t>(host.size(0)), 0);
  for (int64_t i = 0; i < host.numel(); ++i)
    counts[static_cast<size_t>(i / host.size(1))] += values[i] ? 1 : 0;
  return counts;
}

/// Flat positions of the true values of a mask, int64, on the device of `like`.
at::Tensor valid_rows(const at::Tensor& mask, const at::Tensor& like) {
  return mask.to(like.device()).reshape({-1}).nonzero().reshape({-1});
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor*>> Pi05Batch::tensors() {
  std::vector<std::pair<std::string, at::Tensor*>> out;
  const auto add = [&](const char* name, at::Tensor& tensor) {
    if (tensor.defined()) out.emplace_back(name, &tensor);
  };
  add("images", images);
  add("token_ids", token_ids);
  add("state", state);
  add("actions", actions);
  add("action_is_pad", action_is_pad);
  add("dim_is_real", dim_is_real);
  add("augment", augment);
  add("noise", noise);
  add("time", time);
  if (layout) {
    for (auto& entry : layout->tensors()) out.push_back(entry);
  }
  return out;
}

std::string Pi05Batch::signature() const {
  LS_CHECK(layout.has_value(), InternalError, "Pi05 batch: signature() before prepare()");
  std::string out =
      fmt::format("B{} V{} T{} N{} L{}{}", size(), images.size(0), token_ids.size(0),
                  layout->num_rows, layout->length_bound, layout->dense ? " dense" : "");
  if (dim_is_real.defined()) out += " own dims";
  if (augment.defined()) out += " augmented";
  // The plain attention's tables have one shape per distribution of lengths.
  if (layout->pad_index.defined()) {
    out += fmt::format(" padded to {} with {} tokens", layout->max_length, layout->num_valid);
  } else if (layout->num_valid != layout->num_rows && !layout->cu_joint.defined()) {
    out += fmt::format(" {} tokens", layout->num_valid);
  }
  return out;
}

void Pi05Batch::check() const {
  const int64_t batch = size();
  LS_CHECK(batch > 0 && static_cast<int64_t>(images_per_sample.size()) == batch &&
               static_cast<int64_t>(tokens_per_sample.size()) == batch,
           ShapeError, "Pi05 batch: {} sample ids, {} picture counts, {} token counts", batch,
           images_per_sample.size(), tokens_per_sample.size());
  expect(images, "images", at::kFloat, {total(images_per_sample), 3, -1, -1});
  LS_CHECK(images.size(2) == images.size(3), ShapeError,
           "Pi05 batch: pictures are {}x{}, not square", images.size(2), images.size(3));
  expect(token_ids, "token_ids", at::kLong, {-1});
  LS_CHECK(token_ids.size(0) >= total(tokens_per_sample), ShapeError,
           "Pi05 batch: {} text rows for {} tokens", token_ids.size(0), total(tokens_per_sample));
  if (state.defined()) expect(state, "state", at::kFloat, {batch, -1});
  if (actions.defined()) {
    expect(actions, "actions", at::kFloat, {batch, -1, -1});
    const int64_t horizon = actions.size(1);
    if (action_is_pad.defined())
      expect(action_is_pad, "action_is_pad", at::kBool, {batch, horizon});
    if (dim_is_real.defined()) {
      expect(dim_is_real, "dim_is_real", at::kBool, {batch, actions.size(2)});
    }
    if (noise.defined()) expect(noise, "noise", at::kFloat, {batch, horizon, actions.size(2)});
  }
  if (augment.defined()) {
    expect(augment, "augment", at::kFloat, {images.size(0), data::kAugmentNumbers});
  }
  LS_CHECK(static_cast<int64_t>(raw_state.size()) % batch == 0, ShapeError,
           "Pi05 batch: {} raw state numbers for {} samples", raw_state.size(), batch);
  if (time.defined()) expect(time, "time", at::kFloat, {batch});
}

Pi05Batch pack(const at::Tensor& images, const at::Tensor& image_masks, const at::Tensor& tokens,
               const at::Tensor& token_mask, const at::Tensor& state, const at::Tensor& actions,
               const at::Tensor& action_is_pad) {
  expect(images, "images", at::kFloat, {-1, -1, 3, -1, -1});
  const int64_t batch = images.size(0);
  expect(image_masks, "image_masks", at::kBool, {batch, images.size(1)});
  expect(token_mask, "token_mask", at::kBool, {batch, -1});
  LS_CHECK(tokens.defined() &&
               (tokens.scalar_type() == at::kLong || tokens.scalar_type() == at::kInt) &&
               tokens.sizes() == token_mask.sizes(),
           ShapeError, "Pi05 batch: 'tokens' must be int32 or int64 of shape {}",
           fmt::join(token_mask.sizes(), "x"));
  Pi05Batch packed;
  packed.images_per_sample = row_counts(image_masks);
  packed.tokens_per_sample = row_counts(token_mask);
  packed.images =
      images.flatten(0, 1).index_select(0, valid_rows(image_masks, images)).contiguous();
  packed.token_ids = tokens.reshape({-1})
                         .index_select(0, valid_rows(token_mask, tokens))
                         .to(at::kLong)
                         .contiguous();
  packed.state = state;
  packed.actions = actions;
  packed.action_is_pad = action_is_pad;
  if (actions.defined() && !action_is_pad.defined()) {
    packed.action_is_pad =
        actions.new_zeros({batch, actions.size(1)}, actions.options().dtype(at::kBool));
  }
  packed.sample_ids.resize(static_cast<size_t>(batch));
  std::iota(packed.sample_ids.begin(), packed.sample_ids.end(), int64_t{0});
  packed.check();
  return packed;
}

}  // namespace longship::models
