#include "ops/row_lists.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support
using ::testing::HasSubstr;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
constexpr double kUntouched = 7;

at::TensorOptions on(const at::Tensor& other, at::ScalarType type) {
  return other.options().dtype(type);
}

/// The elements' bits: unlike same_bits(), tells zeros of different sign apart.
at::Tensor bits(const at::Tensor& x) {
  return x.cpu().view(x.element_size() == 4 ? at::kInt : at::kShort);
}

struct List {
  at::Tensor rows;    // [places + 1]
  at::Tensor values;  // [places, width]

  int64_t count() const { return rows[-1].item<int64_t>(); }
  int64_t row(int64_t place) const { return rows[place].item<int64_t>(); }
};

List packed(const at::Tensor& table, const at::Tensor& flags, int64_t places, bool clear) {
  List list{at::full({places + 1}, 99, on(table, at::kInt)),
            at::full({places, table.size(1)}, kUntouched, table.options())};
  pack_rows(table, flags, list.rows, list.values, clear);
  return list;
}

/// The same rows in rising order of their numbers.
List sorted(const List& list) {
  const List on_host{list.rows.cpu(), list.values.cpu()};
  const int64_t filled = std::min(on_host.count(), on_host.values.size(0));
  const at::Tensor order = on_host.rows.narrow(0, 0, filled).argsort();
  List result{on_host.rows.clone(), on_host.values.clone()};
  result.rows.narrow(0, 0, filled).copy_(on_host.rows.index_select(0, order));
  result.values.narrow(0, 0, filled).copy_(on_host.values.index_select(0, order));
  return result;
}

/// Tables of `lists` processes, of which every one has some rows of its own and some that others
/// have as well; of three, the second has none and the third has all.
struct Tables {
  std::vector<at::Tensor> tables, flags;

  Tables(int64_t lists, int64_t rows, int64_t width, at::ScalarType type) {
    for (int64_t p = 0; p < lists; ++p) {
      const int64_t touched = p % 3 == 1 ? 0 : p % 3 == 2 ? rows : rows / 2 + 1;
      const at::Tensor which = at::randperm(rows, at::kLong).narrow(0, 0, touched);
      tables.push_back(at::zeros({rows, width}, type));
      tables.back().index_copy_(0, which, random({touched, width}, type));
      flags.push_back(at::zeros({rows}, at::kByte).index_fill_(0, which, 1));
    }
  }

  List lists_of(int64_t places, at::Device device = at::kCPU) const {
    std::vector<at::Tensor> rows, values;
    for (size_t p = 0; p < tables.size(); ++p) {
      const List list = packed(tables[p].to(device), flags[p].to(device), places, false);
      rows.push_back(list.rows);
      values.push_back(list.values);
    }
    return {at::stack(rows), at::stack(values)};
  }

  /// What sum_row_lists shall make of `before`, the whole table, from the dense tables.
  at::Tensor summed(const at::Tensor& before, float divisor) const {
    at::Tensor after = before.clone();
    for (int64_t row = 0; row < before.size(0); ++row) {
      for (int64_t column = 0; column < before.size(1); ++column) {
        bool listed = false;
        float sum = 0;
        for (size_t p = 0; p < tables.size(); ++p) {
          if (flags[p][row].item<int>() == 0) continue;
          const float value = tables[p][row][column].item<float>() / divisor;
          sum = listed ? sum + value : value;
          listed = true;
        }
        if (listed) after[row][column].fill_(sum);
      }
    }
    return after;
  }
};

at::Tensor scratch(const List& lists, int64_t table_rows) {
  return at::full({lists.rows.size(0), table_rows}, 12345, lists.rows.options());
}

void expect_sums(const Tables& from, const List& lists, at::ScalarType out_type, double divisor) {
  const int64_t rows = from.tables[0].size(0), width = from.tables[0].size(1);
  const at::Tensor before = random({rows, width}, out_type);
  const at::Tensor expected = from.summed(before, static_cast<float>(divisor)).view(-1);
  const int64_t all = rows * width;
  const std::vector<std::pair<int64_t, int64_t>> ranges = {
      {0, all}, {width / 2, all - width}, {width + 1, 1}, {all - 3, 3}, {width, 0}};
  for (const auto& [begin, count] : ranges) {
    SCOPED_TRACE(std::to_string(begin) + " + " + std::to_string(count));
    const at::Tensor out = before.view(-1).narrow(0, begin, count).clone();
    const at::Tensor flags = at::zeros({rows}, at::kByte);
    sum_row_lists(out, begin, lists.rows, lists.values, scratch(lists, rows), divisor, flags);
    EXPECT_TRUE(bits(out).equal(bits(expected.narrow(0, begin, count))));
    at::Tensor listed = at::zeros({rows}, at::kByte);
    for (const at::Tensor& flag : from.flags) listed = listed.bitwise_or(flag);
    EXPECT_TRUE(flags.equal(listed));
  }
}

TEST(RowLists, PacksTheFlaggedRowsThatHoldSomething) {
  for (const at::ScalarType type : kTypes) {
    for (const bool clear : {false, true}) {
      at::Tensor table = random({9, 5}, type);
      const at::Tensor flags = at::full({9}, 1, at::kByte);
      flags[1].fill_(0);         // not flagged: never looked at
      table[2].zero_();          // zeros of either sign
      table[2][3].fill_(-0.0);   //
      table[4].zero_();          // something in the last column only
      table[4][4].fill_(1e-38);  //
      table[5].zero_();          // NaN is something
      table[5][0].fill_(std::numeric_limits<double>::quiet_NaN());
      flags[7].fill_(255);  // every number but 0 is a flag
      const at::Tensor before = table.clone();
      const List list = packed(table, flags, 8, clear);
      const std::vector<int64_t> expected = {0, 3, 4, 5, 6, 7, 8};
      ASSERT_EQ(list.count(), 7);
      for (int64_t place = 0; place < 7; ++place) {
        const int64_t row = expected[static_cast<size_t>(place)];
        EXPECT_EQ(list.row(place), row);
        EXPECT_TRUE(bits(list.values[place]).equal(bits(before[row]))) << row;
        EXPECT_TRUE(bits(table[row]).equal(bits(clear ? at::zeros({5}, type) : before[row])));
      }
      EXPECT_EQ(list.row(7), -1);
      EXPECT_TRUE(list.values[7].eq(kUntouched).all().item<bool>());
      for (const int64_t row : {1, 2}) EXPECT_TRUE(bits(table[row]).equal(bits(before[row])));
    }
  }
}

TEST(RowLists, TheSmallestNumberIsSomething) {
  const at::Tensor table = at::zeros({2, 3});
  *(table.mutable_data_ptr<float>() + 4) = std::numeric_limits<float>::denorm_min();
  const List list = packed(table, at::full({2}, 1, at::kByte), 1, false);
  EXPECT_EQ(list.count(), 1);
  EXPECT_EQ(list.row(0), 1);
}

TEST(RowLists, CountsAndClearsRowsThatFindNoPlace) {
  at::Tensor table = random({6, 4}, at::kFloat);
  const at::Tensor before = table.clone();
  const at::Tensor flags = at::full({6}, 1, at::kByte);
  const List kept = packed(table, flags, 2, false);
  EXPECT_EQ(kept.count(), 6);
  EXPECT_TRUE(table.equal(before));
  const List list = packed(table, flags, 2, true);
  EXPECT_EQ(list.count(), 6);
  for (const int64_t place : {0, 1}) {
    EXPECT_EQ(list.row(place), place);
    EXPECT_TRUE(list.values[place].equal(before[place]));
  }
  EXPECT_TRUE(table.eq(0).all().item<bool>());
  EXPECT_EQ(packed(table, flags, 2, true).count(), 0) << "nothing is left";
}

TEST(RowLists, SumsAsTheTablesWould) {
  for (const at::ScalarType type : kTypes) {
    for (const at::ScalarType out_type : kTypes) {
      for (const int64_t lists : {1, 2, 3, 5}) {
        for (const int64_t width : {7, 8}) {
          const Tables from(lists, 9, width, type);
          SCOPED_TRACE(std::to_string(lists) + " lists, width " + std::to_string(width));
          expect_sums(from, from.lists_of(9), out_type, 1);
          expect_sums(from, from.lists_of(12), out_type, static_cast<double>(lists));
        }
      }
    }
  }
}

TEST(RowLists, TheOrderIsThatOfTheLists) {
  const std::vector<float> values = {1e8f, 1, -1e8f, 3};  // 1e8 + 1 is 1e8 in fp32
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    const auto lists = static_cast<int64_t>(values.size());
    // The other row moves row 1 to another place in every second list.
    const at::Tensor rows = at::full({lists, 3}, 1, at::kInt), sums = at::zeros({2, 1});
    const at::Tensor table = at::zeros({lists, 2, 1});
    float expected = 0;
    for (int64_t list = 0; list < lists; ++list) {
      const float value = values[static_cast<size_t>(order[static_cast<size_t>(list)])];
      rows[list][list % 2].fill_(0);
      rows[list][2].fill_(2);
      table[list][1 - list % 2].fill_(value);
      expected = list == 0 ? value : expected + value;
    }
    sum_row_lists(sums.view(-1), 0, rows, table, at::zeros({lists, 2}, at::kInt), 1, {});
    EXPECT_EQ(sums[1][0].item<float>(), expected) << values[static_cast<size_t>(order[0])];
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(RowLists, ZerosKeepTheirSign) {
  const at::Tensor rows = at::full({2, 2}, 1, at::kInt), values = at::full({2, 1, 3}, -0.0);
  rows[1][0].fill_(-1);
  const at::Tensor out = at::full({6}, kUntouched);
  sum_row_lists(out, 0, rows, values, at::zeros({2, 2}, at::kInt), 2, {});
  EXPECT_TRUE(bits(out.narrow(0, 3, 3)).equal(bits(at::full({3}, -0.0))));
  EXPECT_TRUE(out.narrow(0, 0, 3).eq(kUntouched).all().item<bool>());
}

/// Two lists with room for two rows, of which the second had three; also on a GPU.
void expect_nan_of_an_incomplete_list(at::Device device) {
  for (const at::ScalarType type : kTypes) {
    at::Tensor first = at::zeros({5, 3}, type).to(device), second = first.clone();
    first[0].fill_(1);
    for (const int64_t row : {1, 2, 4}) second[row].fill_(2);
    const at::Tensor flags = at::full({5}, 1, at::kByte).to(device);
    const List a = packed(first, flags, 2, false), b = packed(second, flags, 2, false);
    const List lists{at::stack({a.rows, b.rows}), at::stack({a.values, b.values})};
    EXPECT_EQ(b.count(), 3);
    const at::Tensor out = at::full({15}, kUntouched, on(lists.values, type));
    const at::Tensor listed = at::zeros({5}, flags.options());
    sum_row_lists(out, 0, lists.rows, lists.values, scratch(lists, 5), 2, listed);
    for (int64_t row = 0; row < 5; ++row) {
      const bool found = row == 0 || b.row(0) == row || b.row(1) == row;
      const at::Tensor part = out.narrow(0, row * 3, 3);
      EXPECT_TRUE((found ? part.isnan() : part.eq(kUntouched)).all().item<bool>()) << row;
      EXPECT_EQ(listed[row].item<int>(), found ? 1 : 0) << row;
    }
  }
}

TEST(RowLists, AnIncompleteListGivesNaN) {
  expect_nan_of_an_incomplete_list(at::kCPU);
}

/// Numbers that pack_rows does not give; also on a GPU.
void expect_rows_outside_are_skipped(at::Device device) {
  const at::Tensor rows = at::full({1, 5}, -1, at::kInt);
  rows[0][0].fill_(3);
  rows[0][1].fill_(-2147483648.0);
  rows[0][2].fill_(1);
  rows[0][3].fill_(2147483647.0);
  const at::Tensor values = random({1, 4, 2}, at::kFloat);
  const at::Tensor out = at::full({6}, kUntouched).to(device);
  sum_row_lists(out, 0, rows.to(device), values.to(device), at::zeros({1, 3}, at::kInt).to(device),
                1, {});
  at::Tensor expected = at::full({6}, kUntouched);
  expected.narrow(0, 2, 2).copy_(values[0][2]);
  EXPECT_TRUE(out.cpu().equal(expected));
}

TEST(RowLists, RowsOutsideTheTableAreSkipped) {
  expect_rows_outside_are_skipped(at::kCPU);
}

// Rows 1 and 4 of a table of 6 rows of 3, of which `out` has the elements [4, 14); numbers outside
// the table are skipped.
void expect_listed_rows_are_cleared(at::Device device) {
  at::Tensor rows = at::full({2, 3}, -1, at::TensorOptions(at::kInt));
  rows[0][0] = 4;
  rows[0][1] = 1;
  rows[0][2] = 2;  // counts
  rows[1][0] = 1;
  rows[1][1] = 6;
  rows[1][2] = 2;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor out = at::full({10}, 7, at::TensorOptions(type).device(device));
    clear_row_lists(out, 4, rows.to(device), 6, 3);
    at::Tensor expected = at::full({10}, 7, at::TensorOptions(type));
    expected.narrow(0, 0, 2).zero_();  // the end of row 1
    expected.narrow(0, 8, 2).zero_();  // the begin of row 4
    EXPECT_TRUE(out.cpu().equal(expected)) << out.cpu();
  }
}

TEST(RowLists, ListedRowsAreCleared) {
  expect_listed_rows_are_cleared(at::kCPU);
}

void expect_refused(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(RowLists, PackRefusesWhatDoesNotFit) {
  const auto pack = [](const at::Tensor& table, const at::Tensor& flags, const at::Tensor& rows,
                       const at::Tensor& values) {
    return [=] { pack_rows(table, flags, rows, values, true); };
  };
  const at::Tensor table = at::zeros({6, 4}), flags = at::zeros({6}, at::kByte);
  const at::Tensor rows = at::zeros({4}, at::kInt), values = at::zeros({3, 4});
  EXPECT_NO_THROW(pack(table, flags, rows, values)());
  expect_refused(pack(table.view(-1), flags, rows, values), "table must be [V, C], got [24]");
  expect_refused(pack(at::zeros({0, 4}), flags, rows, values), "V, the rows of the table, = 0");
  expect_refused(pack(at::zeros({6, 0}), flags, rows, values), "C, the columns of the table, = 0");
  expect_refused(pack(table, flags, rows, at::zeros({0, 4})), "K, the places of the list, = 0");
  expect_refused(pack(table, flags, rows, at::zeros({3, 5})), "values must be [3, 4], got [3, 5]");
  expect_refused(pack(table, at::zeros({7}, at::kByte), rows, values),
                 "flags must be [6], got [7]");
  expect_refused(pack(table, flags, at::zeros({3}, at::kInt), values), "rows must be [4], got [3]");
  expect_refused(pack(at::zeros({6, 4}, at::kDouble), flags, rows, values),
                 "table must be fp32 or bf16, got Double");
  expect_refused(pack(table, flags, rows, values.to(at::kBFloat16)),
                 "values must be Float, got BFloat16");
  expect_refused(pack(table, flags.to(at::kBool), rows, values), "flags must be Byte, got Bool");
  expect_refused(pack(table, flags, rows.to(at::kLong), values), "rows must be Int, got Long");
  expect_refused(pack(at::zeros({4, 6}).t(), flags, rows, values), "table must be contiguous");
  expect_refused(pack(table, flags.to(at::kMeta), rows, values), "flags is on meta");
}

TEST(RowLists, ClearRefusesWhatDoesNotFit) {
  const at::Tensor out = at::zeros({10}), rows = at::zeros({2, 3}, at::kInt);
  expect_refused([&] { clear_row_lists(out, 9, rows, 6, 3); }, "elements [9, 19) of a table of 6");
  expect_refused([&] { clear_row_lists(out, 0, rows.to(at::kLong), 6, 3); }, "rows");
  expect_refused([&] { clear_row_lists(out.view({2, 5}), 0, rows, 6, 3); }, "out must be [n]");
  expect_refused([&] { clear_row_lists(out.to(at::kDouble), 0, rows, 6, 3); }, "fp32 or bf16");
}

TEST(RowLists, SumRefusesWhatDoesNotFit) {
  const at::Tensor out = at::zeros({24}), slots = at::zeros({2, 6}, at::kInt);
  const List lists{at::full({2, 4}, -1, at::kInt), at::zeros({2, 3, 4})};
  const auto sum = [](const at::Tensor& to, int64_t begin, const List& from, const at::Tensor& at,
                      double divisor, const at::Tensor& flags) {
    return [=] { sum_row_lists(to, begin, from.rows, from.values, at, divisor, flags); };
  };
  EXPECT_NO_THROW(sum(out, 0, lists, slots, 1, {})());
  expect_refused(sum(out.view({6, 4}), 0, lists, slots, 1, {}), "out must be [n], got [6, 4]");
  expect_refused(sum(out, 1, lists, slots, 1, {}), "the elements [1, 25) of a table of 6 x 4 = 24");
  expect_refused(sum(out, -1, lists, slots, 1, {}), "the elements [-1, 23)");
  expect_refused(sum(out, 0, lists, slots, 0, {}), "divisor 0");
  expect_refused(sum(out, 0, lists, slots, 1e39, {}), "divisor 1e+39");
  expect_refused(sum(out, 0, lists, slots, std::numeric_limits<double>::quiet_NaN(), {}),
                 "divisor nan");
  expect_refused(sum(out, 0, {lists.rows, lists.values[0]}, slots, 1, {}),
                 "values must be [W, K, C], got [3, 4]");
  expect_refused(sum(out, 0, {lists.rows, at::zeros({0, 3, 4})}, slots, 1, {}),
                 "W, the number of lists, = 0");
  expect_refused(sum(out, 0, {lists.rows, at::zeros({2, 0, 4})}, slots, 1, {}),
                 "K, the places of a list, = 0");
  expect_refused(sum(out, 0, {lists.rows.narrow(0, 0, 1), lists.values}, slots, 1, {}),
                 "rows must be [2, 4], got [1, 4]");
  expect_refused(sum(out, 0, lists, at::zeros({3, 6}, at::kInt), 1, {}),
                 "slots must be [2, 6], got [3, 6]");
  expect_refused(sum(out, 0, lists, at::zeros({2, 6}), 1, {}), "slots must be Int, got Float");
  expect_refused(sum(out.to(at::kDouble), 0, lists, slots, 1, {}), "out must be fp32 or bf16");
  expect_refused(sum(out, 0, {lists.rows.to(at::kLong), lists.values}, slots, 1, {}),
                 "rows must be Int, got Long");
  expect_refused(sum(out, 0, {lists.rows, lists.values.to(at::kHalf)}, slots, 1, {}),
                 "values must be fp32 or bf16, got Half");
  expect_refused(sum(out, 0, lists, slots, 1, at::zeros({5}, at::kByte)),
                 "flags must be [6], got [5]");
  expect_refused(sum(out, 0, lists, slots, 1, at::zeros({6}, at::kInt)),
                 "flags must be Byte, got Int");
  expect_refused(sum(at::zeros({24, 2}).select(1, 0), 0, lists, slots, 1, {}),
                 "out must be contiguous");
  expect_refused(sum(out, 0, lists, slots.to(at::kMeta), 1, {}), "slots is on meta");
}

TEST(RowListsGpu, ListsHoldTheRowsOfTheOracle) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 7, 8, 264, 2048, 2056}) {
      for (const int64_t rows : {1, 31, 300, 2049}) {
        for (const bool shifted : {false, true}) {
          for (const bool clear : {false, true}) {
            const Tables from(1, rows, width, type);
            at::Tensor table = from.tables[0].clone();
            table[0].fill_(-0.0);
            table[rows - 1].zero_();
            table[rows - 1][width - 1].fill_(std::numeric_limits<double>::quiet_NaN());
            const at::Tensor flags = from.flags[0];
            flags[0].fill_(1);
            flags[rows - 1].fill_(200);
            at::Tensor there = table.to(at::kCUDA);
            if (shifted) there = misaligned(there);
            const List expected = packed(table, flags, rows + 3, clear);
            const List list = sorted(packed(there, flags.to(at::kCUDA), rows + 3, clear));
            SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
            EXPECT_TRUE(list.rows.equal(expected.rows));
            EXPECT_TRUE(bits(list.values).equal(bits(expected.values)));
            EXPECT_TRUE(bits(there).equal(bits(table)));
          }
        }
      }
    }
  }
}

TEST(RowListsGpu, RowsThatFindNoPlace) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  const at::Tensor table = random({500, 24}, at::kBFloat16), there = table.to(at::kCUDA);
  const at::Tensor flags = at::full({500}, 1, at::kByte).to(at::kCUDA);
  const List list = sorted(packed(there, flags, 20, true));
  EXPECT_EQ(list.count(), 500);
  for (int64_t place = 0; place < 20; ++place) {
    ASSERT_GE(list.row(place), 0);
    EXPECT_TRUE(list.values[place].equal(table[list.row(place)]));
    if (place > 0) {
      EXPECT_GT(list.row(place), list.row(place - 1)) << "twice";
    }
  }
  EXPECT_TRUE(there.eq(0).all().item<bool>());
}

TEST(RowListsGpu, SumsAreTheBitsOfTheOracle) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  for (const at::ScalarType type : kTypes) {
    for (const at::ScalarType out_type : kTypes) {
      for (const int64_t lists : {1, 2, 3, 8, 40}) {
        for (const int64_t width : {7, 8, 1032, 2048}) {
          constexpr int64_t kRows = 19;
          const Tables from(lists, kRows, width, type);
          const List here = from.lists_of(kRows + 2), there = from.lists_of(kRows + 2, at::kCUDA);
          const int64_t all = kRows * width;
          // Everything, rows cut at odd places, rows cut at multiples of 8, a part of one row (of
          // wide ones), nothing.
          const std::vector<std::pair<int64_t, int64_t>> ranges = {
              {0, all}, {width + 3, all - 2 * width}, {8, all - 16}, {16, 8}, {width, 0}};
          for (const auto& [begin, count] : ranges) {
            for (const double divisor : {1.0, 3.0, 8.0}) {
              const at::Tensor before = random({count}, out_type);
              const at::Tensor expected = before.clone(), out = before.to(at::kCUDA);
              const at::Tensor moved = count > 0 ? misaligned(out) : out;
              const at::Tensor flags = at::zeros({kRows}, at::kByte);
              const at::Tensor flags_there = flags.to(at::kCUDA);
              sum_row_lists(expected, begin, here.rows, here.values, scratch(here, kRows), divisor,
                            flags);
              sum_row_lists(out, begin, there.rows, there.values, scratch(there, kRows), divisor,
                            flags_there);
              sum_row_lists(moved, begin, there.rows, there.values, scratch(there, kRows), divisor,
                            {});
              SCOPED_TRACE(std::to_string(lists) + " lists of " + std::to_string(width) + ", " +
                           std::to_string(begin) + " + " + std::to_string(count));
              EXPECT_TRUE(bits(out).equal(bits(expected)));
              EXPECT_TRUE(bits(moved).equal(bits(expected)));
              EXPECT_TRUE(flags_there.cpu().equal(flags));
            }
          }
        }
      }
    }
  }
}

TEST(RowListsGpu, AnIncompleteListGivesNaN) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  expect_nan_of_an_incomplete_list(at::kCUDA);
}

TEST(RowListsGpu, RowsOutsideTheTableAreSkipped) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  expect_rows_outside_are_skipped(at::kCUDA);
}

// Two processes' gradients of the token table of a large model; half of it is summed.
TEST(RowListsGpu, ListedRowsAreCleared) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  expect_listed_rows_are_cleared(at::kCUDA);
}

TEST(RowListsGpu, AWholeTokenTable) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  constexpr int64_t kRows = 257152, kWidth = 2048, kPlaces = 6400, kTouched = 1900;
  const auto type = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
  std::vector<at::Tensor> rows, values;
  for (int p = 0; p < 2; ++p) {
    // Rows with a small number are in use more often.
    const at::Tensor which = at::randperm(p == 0 ? 4000 : kRows, at::kLong).narrow(0, 0, kTouched);
    const at::Tensor content = random({kTouched, kWidth}, at::kBFloat16);
    const at::Tensor table = at::zeros({kRows, kWidth}, type);
    table.index_copy_(0, which.to(at::kCUDA), content.to(at::kCUDA));
    const at::Tensor flags = at::zeros({kRows}, type.dtype(at::kByte));
    flags.narrow(0, 0, kRows / 2).fill_(1);  // most of them hold nothing in this step
    flags.index_fill_(0, which.to(at::kCUDA), 1);
    const List list = packed(table, flags, kPlaces, true);
    const List in_order = sorted(list);
    const at::Tensor order = which.argsort();
    ASSERT_EQ(in_order.count(), kTouched);
    EXPECT_TRUE(
        in_order.rows.narrow(0, 0, kTouched).equal(which.index_select(0, order).to(at::kInt)));
    EXPECT_TRUE(in_order.rows.narrow(0, kTouched, kPlaces - kTouched).eq(-1).all().item<bool>());
    EXPECT_TRUE(same_bits(in_order.values.narrow(0, 0, kTouched), content.index_select(0, order)));
    EXPECT_EQ(table.count_nonzero().item<int64_t>(), 0);
    rows.push_back(list.rows);
    values.push_back(list.values);
  }
  const List there{at::stack(rows), at::stack(values)};
  const List here{there.rows.cpu(), there.values.cpu()};
  constexpr int64_t kBegin = 1000 * kWidth + 40, kCount = kRows / 2 * kWidth;
  const at::Tensor out = at::full({kCount}, kUntouched, type), expected = out.cpu();
  sum_row_lists(out, kBegin, there.rows, there.values, scratch(there, kRows), 2, {});
  sum_row_lists(expected, kBegin, here.rows, here.values, scratch(here, kRows), 2, {});
  EXPECT_TRUE(bits(out).equal(bits(expected)));
}

TEST(RowListsGpu, AReplayedGraphReadsWhatIsThereThen) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  const c10::Device device(c10::DeviceType::CUDA, 0);
  constexpr int64_t kRows = 300, kWidth = 40, kPlaces = 200;
  const auto type = at::TensorOptions(at::kBFloat16).device(device);
  const at::Tensor table = at::zeros({2, kRows, kWidth}, type);
  const at::Tensor flags = at::zeros({2, kRows}, type.dtype(at::kByte));
  const List lists{at::zeros({2, kPlaces + 1}, type.dtype(at::kInt)),
                   at::zeros({2, kPlaces, kWidth}, type)};
  const at::Tensor slots = scratch(lists, kRows), out = at::zeros({kRows * kWidth}, type);
  const auto step = [&] {
    for (int64_t p = 0; p < 2; ++p) {
      pack_rows(table[p], flags[p], lists.rows[p], lists.values[p], true);
    }
    sum_row_lists(out, 0, lists.rows, lists.values, slots, 2, {});
  };
  const runtime::Stream stream = runtime::Stream::make(device, false);
  const runtime::GraphPool pool(device);
  runtime::Stream::current(device).synchronize();  // the tensors are there
  runtime::CapturedGraph graph;
  {
    const runtime::StreamScope scope(stream);
    step();  // loads the kernels, as the eager step before a captured one does
  }
  graph.capture(stream, pool, step);
  for (const int64_t touched : {150, 0, 20, 201}) {  // the last ones find no place
    std::vector<at::Tensor> rows, values;
    const runtime::StreamScope scope(stream);
    out.fill_(kUntouched);
    for (int64_t p = 0; p < 2; ++p) {
      at::Tensor now = at::zeros({kRows, kWidth}, at::kBFloat16);
      const at::Tensor which = at::randperm(kRows, at::kLong).narrow(0, 0, touched);
      now.index_copy_(0, which, random({touched, kWidth}, at::kBFloat16));
      const at::Tensor flagged = at::zeros({kRows}, at::kByte).index_fill_(0, which, 1);
      table[p].copy_(now);
      flags[p].copy_(flagged);
      const List list = packed(now, flagged, kPlaces, false);
      rows.push_back(list.rows);
      values.push_back(list.values);
    }
    graph.replay();
    stream.synchronize();
    EXPECT_EQ(table.count_nonzero().item<int64_t>(), 0);
    if (touched > kPlaces) {
      EXPECT_EQ(lists.rows[0][kPlaces].item<int64_t>(), touched);
      // Which rows found a place is another set every time.
      for (int64_t place = 0; place < kPlaces; ++place) {
        const int64_t row = lists.rows[0][place].item<int64_t>();
        EXPECT_TRUE(out.narrow(0, row * kWidth, kWidth).isnan().all().item<bool>()) << row;
      }
      continue;
    }
    const List here{at::stack(rows), at::stack(values)};
    const at::Tensor expected = at::full({kRows * kWidth}, kUntouched, at::kBFloat16);
    sum_row_lists(expected, 0, here.rows, here.values, scratch(here, kRows), 2, {});
    EXPECT_TRUE(bits(out).equal(bits(expected))) << touched;
  }
}

}  // namespace
}  // namespace longship::ops
