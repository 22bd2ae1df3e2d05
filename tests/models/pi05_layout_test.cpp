#include "models/pi05/layout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>

#include "models/pi05/batch.h"

namespace longship::models {
namespace {

std::vector<int64_t> values(const at::Tensor& t) {
  const at::Tensor wide = t.to(at::kLong).contiguous();
  return {wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel()};
}

/// Two samples: 1 picture of 2 tokens and 3 words; 2 pictures and 1 word. Two rows of padding.
LayoutRequest request(bool packed) {
  LayoutRequest r;
  r.images_per_sample = {1, 2};
  r.tokens_per_sample = {3, 1};
  r.tokens_per_image = 2;
  r.text_rows = 6;
  r.suffix_length = 2;
  r.length_bound = 9;
  r.packed = packed;
  return r;
}

TEST(PrefixLayout, RowsArePicturesThenTextPerSampleThenPadding) {
  const PrefixLayout l = make_prefix_layout(request(true));
  EXPECT_EQ(l.num_rows, 12);
  EXPECT_EQ(l.num_valid, 10);
  EXPECT_EQ(l.max_length, 5);
  EXPECT_FALSE(l.dense);
  EXPECT_EQ(values(l.gather), (std::vector<int64_t>{0, 1, 6, 7, 8, 2, 3, 4, 5, 9, 10, 11}));
  EXPECT_EQ(values(l.positions), (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0}));
  EXPECT_EQ(values(l.suffix_positions), (std::vector<int64_t>{5, 6, 5, 6}));
  EXPECT_EQ(values(l.cu_prefix), (std::vector<int64_t>{0, 5, 10}));
  EXPECT_EQ(values(l.rows_valid()), (std::vector<int64_t>{10}));
}

TEST(PrefixLayout, JointRowsArePrefixThenSuffixPerSample) {
  const PrefixLayout l = make_prefix_layout(request(true));
  EXPECT_EQ(values(l.cu_joint), (std::vector<int64_t>{0, 7, 14}));
  EXPECT_EQ(values(l.cu_suffix), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(values(l.joint_index),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 12, 13, 5, 6, 7, 8, 9, 14, 15, 10, 11}));
}

TEST(PrefixLayout, InversesInvert) {
  const PrefixLayout l = make_prefix_layout(request(true));
  for (const auto& [index, inverse] :
       {std::pair{l.gather, l.gather_inverse}, std::pair{l.joint_index, l.joint_inverse}}) {
    EXPECT_TRUE(at::equal(index.index_select(0, inverse), at::arange(index.size(0), at::kLong)));
  }
}

TEST(PrefixLayout, EqualLengthsWithoutPaddingAreDense) {
  LayoutRequest r = request(true);
  r.images_per_sample = {1, 1};
  r.tokens_per_sample = {2, 2};
  r.text_rows = 4;
  const PrefixLayout dense = make_prefix_layout(r);
  EXPECT_TRUE(dense.dense);
  EXPECT_FALSE(dense.joint_index.defined());
  r.text_rows = 5;
  EXPECT_FALSE(make_prefix_layout(r).dense);
}

TEST(PrefixLayout, PaddingThatFillsTheRowsOfShorterSamplesIsNotDense) {
  LayoutRequest r = request(true);
  r.images_per_sample = {1, 1};
  r.tokens_per_sample = {3, 1};
  r.text_rows = 6;  // 4 + 6 rows, as two samples of five tokens have
  const PrefixLayout l = make_prefix_layout(r);
  EXPECT_EQ(l.num_rows, l.batch_size * l.max_length);
  EXPECT_FALSE(l.dense);
  EXPECT_TRUE(l.joint_index.defined());
}

TEST(PrefixLayout, PlainTablesOnlyWhereLengthsDiffer) {
  LayoutRequest r = request(false);
  EXPECT_FALSE(make_prefix_layout(r).pad_index.defined());  // both samples have five tokens
  r.tokens_per_sample = {3, 0};
  const PrefixLayout l = make_prefix_layout(r);
  EXPECT_EQ(values(l.unused), (std::vector<int64_t>{9}));
  EXPECT_EQ(l.key_mask.sizes(), (std::vector<int64_t>{2, 1, 1, 5}));
  EXPECT_LT(l.key_mask[1][0][0][4].item<float>(), -1e29f);
}

}  // namespace
}  // namespace longship::models
