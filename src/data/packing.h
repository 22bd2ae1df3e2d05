#pragma once
// Samples of language and vision packed behind each other up to a budget of tokens, so that no step
// computes padding. Attention stays inside each sample (nn::packed_self_attention). Torch-free.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longship::data {

/// What packing has to know of a sample, before any picture is decoded.
struct PackItem {
  int64_t position = 0;  // in the stream of samples
  int64_t sample_id = 0;
  int64_t tokens = 0;  // rows of the language model, those of the pictures included; >= 1
  int64_t pictures = 0;
  int64_t labels = 0;  // tokens with a loss
  bool operator==(const PackItem&) const = default;
};

struct PackOptions {
  int64_t token_budget = 4096;
  int64_t max_pictures = 0;  // per pack; 0: no bound
  int64_t window = 64;       // samples looked at to fill a pack
  bool skip_too_long =
      false;  // samples that fit into no pack are left out and counted; false: error
  /// Throws ConfigError.
  void check() const;
};

/// Samples of one pack, in the order in which their rows lie.
struct Pack {
  std::vector<PackItem> items;
  int64_t tokens = 0;
  int64_t pictures = 0;
};

/// Everything that the packs to come depend on besides the stream: small, part of a checkpoint.
struct PackerState {
  int64_t next_position = 0;      // first sample of the stream not looked at
  std::vector<PackItem> waiting;  // looked at, in no pack yet
  int64_t num_packs = 0;          // made so far
  int64_t num_skipped = 0;
};
std::string to_json(const PackerState& state);
/// Throws CheckpointError naming `name`.
PackerState parse_packer_state(std::string_view json, std::string_view name);

/// First fit in the order of the stream: a pack begins with the oldest waiting sample and takes, in
/// order, every sample of the window that still fits. So no sample waits longer than `window`
/// packs, and the sequence of packs is a function of the stream and the options: neither workers
/// nor the number of ranks change it. Rank r of R takes the packs p with p % R == r of each step.
class Packer {
 public:
  /// measure(position) says what lies at a position of the stream (0, 1, ...); it is called once
  /// per position, in order. `num_samples` >= 0 ends the stream there, -1: endless. Throws
  /// ConfigError.
  Packer(PackOptions options, std::function<PackItem(int64_t position)> measure,
         int64_t num_samples = -1, PackerState state = {});

  /// The next pack; empty items at the end of a stream that ends. Throws DataError for a sample
  /// that is larger than a pack, unless skip_too_long.
  Pack next();
  const PackerState& state() const { return state_; }

 private:
  void look_ahead();
  bool fits_alone(const PackItem& item) const;

  PackOptions options_;
  std::function<PackItem(int64_t)> measure_;
  int64_t num_samples_;
  PackerState state_;
};

/// Where the rows of a pack lie, padded to `rows`.
struct PackLayout {
  std::vector<int32_t> cu_seqlens;    // [samples + 1]: sample s has the rows cu[s] .. cu[s + 1]
  std::vector<int32_t> cu_pictures;   // [samples + 1]: likewise for the pictures
  std::vector<int32_t> segment_ids;   // [rows]: 1, 2, ... per sample; 0 for padding rows, all last
  std::vector<int64_t> position_ids;  // [rows]: 0, 1, ... in each sample; 0 for padding rows
  int64_t longest = 0;                // rows of the longest sample
};
/// Throws ShapeError when the pack has more than `rows` tokens. A fixed `rows` (the budget) gives
/// every step one shape, which a captured graph needs.
PackLayout make_pack_layout(const Pack& pack, int64_t rows);

/// What an unpacked batch of the same samples averages over.
enum class LossMean {
  kTokens,   // all labelled tokens of the step alike
  kSamples,  // every sample alike: mean over its labelled tokens, then over samples that have any
};

/// Weight of the loss of each labelled token of sample [pack][item]: the sum over all packs of a
/// step (of all ranks) of weight * loss is the mean over the samples unpacked, and so is its
/// gradient. `packs`: all packs of the step. Sum the packs' losses and gradients, do not average
/// them. Throws DataError when no token of the step has a label.
std::vector<std::vector<double>> pack_loss_weights(std::span<const Pack> packs, LossMean mean);

}  // namespace longship::data
