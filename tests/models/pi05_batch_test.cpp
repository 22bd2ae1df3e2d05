#include "models/pi05/batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace longship::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Padded {
  at::Tensor images = at::arange(2 * 2 * 3 * 4, at::kFloat).reshape({2, 2, 3, 2, 2});
  at::Tensor image_masks = at::tensor({1, 0, 1, 1}).to(at::kBool).reshape({2, 2});
  at::Tensor tokens = at::tensor({2, 5, 6, 0, 2, 7, 0, 0}).to(at::kInt).reshape({2, 4});
  at::Tensor token_mask = at::tensor({1, 1, 1, 0, 1, 1, 0, 0}).to(at::kBool).reshape({2, 4});
  at::Tensor state = at::zeros({2, 8}, at::kFloat);
  at::Tensor actions = at::zeros({2, 5, 8}, at::kFloat);
  at::Tensor is_pad;
  Pi05Batch pack() const {
    return models::pack(images, image_masks, tokens, token_mask, state, actions, is_pad);
  }
};

TEST(Pi05Batch, PackKeepsPresentPicturesAndValidTokensInOrder) {
  const Padded p;
  const Pi05Batch b = p.pack();
  EXPECT_THAT(b.images_per_sample, ElementsAre(1, 2));
  EXPECT_THAT(b.tokens_per_sample, ElementsAre(3, 2));
  EXPECT_THAT(b.sample_ids, ElementsAre(0, 1));
  ASSERT_EQ(b.images.size(0), 3);
  EXPECT_TRUE(at::equal(b.images[0], p.images[0][0]));
  EXPECT_TRUE(at::equal(b.images[1], p.images[1][0]));
  EXPECT_TRUE(at::equal(b.images[2], p.images[1][1]));
  EXPECT_TRUE(at::equal(b.token_ids, at::tensor({2, 5, 6, 2, 7}).to(at::kLong)));
  EXPECT_TRUE(at::equal(b.action_is_pad, at::zeros({2, 5}, at::kBool)));
}

TEST(Pi05Batch, HolesInTheTokenMaskAreDropped) {
  Padded p;
  p.token_mask = at::tensor({1, 0, 1, 1, 0, 0, 0, 1}).to(at::kBool).reshape({2, 4});
  const Pi05Batch b = p.pack();
  EXPECT_TRUE(at::equal(b.token_ids, at::tensor({2, 6, 0, 0}).to(at::kLong)));
  EXPECT_THAT(b.tokens_per_sample, ElementsAre(3, 1));
}

TEST(Pi05Batch, WorksWithoutActionsForSampling) {
  Padded p;
  p.actions = at::Tensor();
  p.state = at::Tensor();
  const Pi05Batch b = p.pack();
  EXPECT_FALSE(b.actions.defined());
  EXPECT_FALSE(b.action_is_pad.defined());
}

TEST(Pi05Batch, ShapeErrorsNameTheField) {
  const auto error = [](const std::function<void(Padded&)>& change) {
    Padded p;
    change(p);
    try {
      p.pack();
    } catch (const ShapeError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error([](Padded& p) {
                p.image_masks = at::zeros({2, 3}, at::kBool);
              }),
              HasSubstr("'image_masks' is Bool of shape 2x3"));
  EXPECT_THAT(error([](Padded& p) {
                p.token_mask = at::zeros({2, 3}, at::kBool);
              }),
              HasSubstr("'tokens'"));
  EXPECT_THAT(error([](Padded& p) {
                p.actions = at::zeros({3, 5, 8}, at::kFloat);
              }),
              HasSubstr("'actions'"));
  EXPECT_THAT(error([](Padded& p) {
                p.state = at::zeros({2, 8}, at::kDouble);
              }),
              HasSubstr("'state' is Double"));
  EXPECT_THAT(error([](Padded& p) { p.images = at::Tensor(); }),
              HasSubstr("'images' is undefined"));
}

TEST(Pi05Batch, ToMovesEveryDefinedTensor) {
  Pi05Batch b = Padded().pack();
  b.to(at::kMeta);
  EXPECT_TRUE(b.images.is_meta());
  EXPECT_TRUE(b.actions.is_meta());
  EXPECT_TRUE(b.action_is_pad.is_meta());
  EXPECT_FALSE(b.noise.defined());
  EXPECT_THAT(b.images_per_sample, ElementsAre(1, 2));
}

}  // namespace
}  // namespace longship::models
