// Prompts beyond the token limit: refused, trimmed or cut, as the recipe says.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "models/pi05/prompt.h"
#include "models/pi05/transform.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

using ::testing::AllOf;
using testing::FakeDataset;
using ::testing::HasSubstr;

constexpr int64_t kStateWidth = 32;

FakeDataset dataset(std::vector<std::string> tasks) {
  FakeDataset d;
  d.add_column("action", 2, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(100 * e + 10 * t + i);
  });
  d.add_column("observation.state", kStateWidth,
               [](int64_t e, int64_t t, int64_t i) { return static_cast<float>(e + t * (i + 1)); });
  d.add_camera("observation.image", 6, 9);
  for (size_t i = 0; i < tasks.size(); ++i) d.add_episode(4);
  d.task_list = std::move(tasks);
  return d;
}

Pi05TransformOptions options(const std::string& overflow, int64_t limit) {
  Pi05TransformOptions o;
  o.image_size = 8;
  o.horizon = 4;
  o.max_action_dim = 32;
  o.tokenizer_path = testing::golden_path("pi05/paligemma_tokenizer/tokenizer.model");
  o.slots = {"base_0_rgb"};
  o.prompt_overflow = overflow;
  o.token_limit = limit;
  return o;
}

std::vector<int64_t> tokens_of(const Pi05Transform& t, const FakeDataset& d, int64_t id) {
  std::vector<std::unique_ptr<Transform::Item>> items;
  items.push_back(t.prepare(d.get(id, t.windows())));
  const auto batch = t.collate(items);
  const at::Tensor ids = dynamic_cast<const Pi05Batch&>(*batch).token_ids;
  const int64_t* values = ids.const_data_ptr<int64_t>();
  return {values, values + ids.numel()};
}

std::vector<float> state_of(const Pi05Transform& t, const FakeDataset& d, int64_t id) {
  std::vector<float> state(kStateWidth);
  t.state_normalizer()->normalise(
      d.get_columns(id, t.windows()).columns.at("observation.state").values, state);
  return state;
}

std::string words(int64_t count) {
  std::string text = "move";
  for (int64_t i = 1; i < count; ++i) text += " box";
  return text;
}

using longship::testing::message_of;

TEST(PromptOverflow, ErrorComesWithAHistogramAndTheLimitThatHoldsAll) {
  const FakeDataset d = dataset({words(10), words(47), words(48), words(49), words(400)});
  const Pi05Transform wide(options("error", 100000), d);
  size_t most = 0;
  for (int64_t id = 16; id < 20; ++id) {
    most = std::max(most, wide.prompt_tokens(words(400), state_of(wide, d, id)).size());
  }
  const std::string message =
      message_of<DataError>([&] { Pi05Transform(options("error", 280), d).check_dataset(d); });
  EXPECT_THAT(message, AllOf(HasSubstr("1 task text(s)"), HasSubstr("the limit is 280"),
                             HasSubstr("tasks: "), HasSubstr("holds all"), HasSubstr("trim_task")));
  // The limit that it names is enough, and the longest prompt needs no more.
  const size_t at = message.find("a limit of ");
  ASSERT_NE(at, std::string::npos);
  const int64_t enough = std::stoll(message.substr(at + 11));
  EXPECT_GE(enough, static_cast<int64_t>(most));
  EXPECT_NO_THROW(Pi05Transform(options("error", enough), d).check_dataset(d));
}

TEST(PromptOverflow, TrimShortensTheTaskOnlyAndAtAWord) {
  const FakeDataset d = dataset({words(10), words(400), "x" + std::string(900, 'q')});
  const Pi05Transform wide(options("error", 100000), d);
  for (const int64_t limit : {180, 220, 300}) {
    const Pi05Transform t(options("trim_task", limit), d);
    EXPECT_NO_THROW(t.check_dataset(d));
    for (int64_t id = 0; id < d.size(); ++id) {
      const std::vector<float> state = state_of(t, d, id);
      const std::vector<int64_t> found = tokens_of(t, d, id);
      EXPECT_LE(static_cast<int64_t>(found.size()), limit);
      const int64_t episode = id / 4;
      // The prompt of the longest run of words that fits, with every digit and the end.
      std::vector<int64_t> best;
      if (episode < 2) {
        for (int64_t n = 1; n <= (episode == 0 ? 10 : 400); ++n) {
          const auto some = wide.prompt_tokens(words(n), state);
          if (static_cast<int64_t>(some.size()) <= limit) best = some;
        }
      } else {
        best = wide.prompt_tokens("", state);  // one word that never fits
      }
      EXPECT_EQ(found, best) << "sample " << id << " limit " << limit;
    }
  }
}

TEST(PromptOverflow, TrimRefusesWhenEvenNoTaskFits) {
  const FakeDataset d = dataset({words(400)});
  const Pi05Transform t(options("trim_task", 40), d);
  EXPECT_THAT(message_of<DataError>([&] { t.check_dataset(d); }),
              HasSubstr("even without its task"));
  EXPECT_THAT(message_of<DataError>([&] { t.prepare(d.get(2, t.windows())); }),
              AllOf(HasSubstr("episode 0 frame 2"), HasSubstr("even without its task")));
}

TEST(PromptOverflow, ReferenceCutsTheTail) {
  const FakeDataset d = dataset({words(10), words(400)});
  const Pi05Transform wide(options("error", 100000), d);
  const Pi05Transform t(options("reference", 48), d);
  EXPECT_NO_THROW(t.check_dataset(d));
  for (const int64_t id : {1, 5}) {
    const auto whole = wide.prompt_tokens(d.task_of(id), state_of(t, d, id));
    const PaddedTokens padded = pad_tokens(whole, 48, 0);
    EXPECT_EQ(tokens_of(t, d, id), padded.ids);
  }
}

}  // namespace
}  // namespace longship::models
