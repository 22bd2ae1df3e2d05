// Prompts against the token limit: before training for every task, and sample by sample.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "models/pi05/prompt.h"
#include "models/pi05/transform.h"

namespace longship::models {
namespace {

constexpr size_t kMaxListedTasks = 5;

/// "1..32: 3, 33..64: 1": how many tasks need how many tokens, in steps of a power of two that give
/// at most ten lines.
std::string histogram(const std::vector<int64_t>& lengths) {
  const int64_t most = *std::max_element(lengths.begin(), lengths.end());
  int64_t step = 8;
  while (most / step >= 10) step *= 2;
  std::map<int64_t, int64_t> count;
  for (const int64_t length : lengths) ++count[(length - 1) / step];
  std::vector<std::string> parts;
  for (const auto& [bin, number] : count) {
    parts.push_back(fmt::format("{}..{}: {}", bin * step + 1, (bin + 1) * step, number));
  }
  return join(parts, ", ");
}

/// Where each word of a text ends, ascending: places at which it may be cut.
std::vector<size_t> word_ends(std::string_view text) {
  std::vector<size_t> ends;
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '_'; };
  for (size_t i = 1; i < text.size(); ++i) {
    if (is_space(text[i]) && !is_space(text[i - 1])) ends.push_back(i);
  }
  return ends;
}

}  // namespace

std::vector<int64_t> Pi05Transform::fitting_tokens(const data::RawSample& sample,
                                                   std::span<const float> state) const {
  std::vector<int64_t> tokens = prompt_tokens(sample.task, state);
  const auto limit = static_cast<size_t>(options_.token_limit);
  if (tokens.size() <= limit) return tokens;
  if (options_.prompt_overflow == "reference") {
    tokens.resize(limit);
    return tokens;
  }
  if (options_.prompt_overflow == "trim_task") {
    const std::vector<size_t> ends = word_ends(sample.task);
    // Fewer words need fewer tokens, nearly: search by halves, then take away what is still too
    // long.
    size_t low = 0, high = ends.size();  // words kept
    while (low < high) {
      const size_t middle = (low + high + 1) / 2;
      const std::string_view cut = std::string_view(sample.task).substr(0, ends[middle - 1]);
      if (prompt_tokens(cut, state).size() <= limit) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    for (size_t words = low + 1; words-- > 0;) {
      const std::string_view cut = words == 0
                                       ? std::string_view()
                                       : std::string_view(sample.task).substr(0, ends[words - 1]);
      std::vector<int64_t> trimmed = prompt_tokens(cut, state);
      if (trimmed.size() <= limit) return trimmed;
    }
  }
  throw DataError(fmt::format(
      "episode {} frame {}: the prompt needs {} tokens, the limit is {}{}: shorten the task text "
      "or "
      "raise the limit (model.token_limit); task: \"{}\"",
      sample.episode, sample.frame, tokens.size(), limit,
      options_.prompt_overflow == "trim_task" ? ", and even without its task it does not fit" : "",
      printable(sample.task)));
}

/// Two stages, because encoding every frame's prompt would take minutes on a large dataset: a task
/// whose prompt fits with the costliest state digits fits in every frame; only frames of the other
/// tasks are encoded.
void Pi05Transform::check_prompts(const data::Dataset& dataset) const {
  const bool digits = options_.variant == "pi05" && options_.discrete_state;
  std::vector<int64_t> worst(static_cast<size_t>(digits ? state_dim() : 0), -1);
  size_t most = 0;
  for (int64_t bin = -1; digits && bin < kStateBins; ++bin) {
    const size_t n = tokenizer_->encode(pi05_prompt("", std::vector<int64_t>(2, bin))).size();
    if (n > most) std::fill(worst.begin(), worst.end(), bin);
    most = std::max(most, n);
  }
  std::set<std::string, std::less<>> suspects;
  std::vector<int64_t> lengths;  // per task, with the costliest digits
  for (const std::string& task : dataset.tasks()) {
    const auto tokens =
        digits ? pi05_tokens(*tokenizer_, task, worst) : pi0_tokens(*tokenizer_, task);
    lengths.push_back(static_cast<int64_t>(tokens.size()));
    if (lengths.back() > options_.token_limit) suspects.insert(task);
  }
  if (suspects.empty()) return;
  data::WindowSpec spec;
  if (state_norm_) spec.columns[options_.state_feature] = {0};
  std::vector<float> state(static_cast<size_t>(state_dim())), own(state.size());
  std::vector<std::string> lines;
  for (int64_t id = 0; id < dataset.size() && !suspects.empty(); ++id) {
    const auto it = suspects.find(dataset.task_of(id));
    if (it == suspects.end()) continue;
    const data::RawSample sample = dataset.get_columns(id, spec);
    if (state_norm_) {
      state_norm_->normalise(sample.columns.at(options_.state_feature).values, own);
      for (size_t d = 0; d < own.size(); ++d) state[d] = own[digit_order_[d]];
    }
    const auto needed = static_cast<int64_t>(prompt_tokens(sample.task, state).size());
    if (needed <= options_.token_limit) continue;
    if (options_.prompt_overflow == "trim_task")
      fitting_tokens(sample, state);  // or it says why not
    lines.push_back(fmt::format(
        "  episode {} frame {}: the prompt needs {} tokens, the limit is {}; task: \"{}\"",
        sample.episode, sample.frame, needed, options_.token_limit, printable(sample.task)));
    suspects.erase(it);
  }
  if (lines.empty()) return;
  const size_t num_tasks = lines.size();
  if (num_tasks > kMaxListedTasks) {
    lines.resize(kMaxListedTasks);
    lines.push_back(fmt::format("  and {} more", num_tasks - kMaxListedTasks));
  }
  lines.push_back(fmt::format(
      "  tokens per task with the longest state digits, tasks: {}; a limit of {} holds all",
      histogram(lengths), *std::max_element(lengths.begin(), lengths.end())));
  if (options_.prompt_overflow != "error") {
    log::warn(
        "{}: {} task text(s) are longer than the token limit and are cut "
        "(model.prompt_overflow {})\n{}",
        dataset.root().string(), num_tasks, options_.prompt_overflow, join(lines, "\n"));
    return;
  }
  throw DataError(fmt::format(
      "{}: {} task text(s) are longer than the model's token limit; prompts are not cut: shorten "
      "the text, raise model.token_limit, or choose model.prompt_overflow trim_task or "
      "reference\n{}",
      dataset.root().string(), num_tasks, join(lines, "\n")));
}

}  // namespace longship::models
