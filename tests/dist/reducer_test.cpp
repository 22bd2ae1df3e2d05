#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/zero1.h"
#include "ranks.h"

namespace longship::dist {
namespace {

using ::testing::HasSubstr;

void require(bool condition, const std::string& what) {
  LS_CHECK(condition, InternalError, "{}", what);
}

struct Params {
  std::vector<ParamSpec> specs;
  std::vector<ReducedParam> tensors;
  void add(const std::string& name, int64_t n, GradSource source = GradSource::kBackward) {
    at::Tensor t = at::full({n}, 1.0, at::kFloat);
    t.requires_grad_(source != GradSource::kNone);
    at::Tensor external;
    if (source == GradSource::kExternal) external = at::zeros({n}, at::kFloat);
    specs.push_back({name, n, at::kFloat, "", source});
    tensors.push_back({t, external});
  }
  BucketPlan plan(int64_t world, int64_t bytes = 40) const {
    PlanOptions options;
    options.world_size = world;
    options.bucket_bytes = options.first_bucket_bytes = bytes;
    return plan_buckets(specs, options);
  }
};

// All in a child: autograd must not run in the process that forks.
std::string error_of(const std::function<void()>& body) {
  const auto ranks = run_ranks({0}, 1, [&](const LaunchInfo&) {
    body();
    return std::string("no error");
  });
  return ranks.front().text;
}

TEST(Reducer, ForgottenGradientIsNamed) {
  EXPECT_THAT(error_of([] {
                Params p;
                p.add("used", 3);
                p.add("forgotten", 4);
                Communicator c(make_local_transport());
                GradReducer reducer(c, p.plan(1), p.tensors, ReduceMode::kAllReduce);
                reducer.begin_step();
                reducer.begin_micro_batch(true);
                p.tensors[0].param.sum().backward();
                reducer.finish();
              }),
              HasSubstr("gave 1 parameters no gradient (forgotten)"));
}

TEST(Reducer, UnexpectedGradientIsNamed) {
  EXPECT_THAT(error_of([] {
                Params p;
                p.add("used", 3);
                p.add("quiet", 4, GradSource::kUnused);
                Communicator c(make_local_transport());
                GradReducer reducer(c, p.plan(1), p.tensors, ReduceMode::kAllReduce);
                reducer.begin_step();
                reducer.begin_micro_batch(true);
                (p.tensors[0].param.sum() + p.tensors[1].param.sum()).backward();
              }),
              HasSubstr("'quiet' got a gradient although"));
}

TEST(Reducer, WrongUseIsNamed) {
  EXPECT_THAT(error_of([] {
                Params p;
                p.add("x", 3);
                Communicator c(make_local_transport());
                GradReducer reducer(c, p.plan(2), p.tensors, ReduceMode::kAllReduce);
              }),
              HasSubstr("the plan is for 2 ranks, the group has 1"));
  EXPECT_THAT(error_of([] {
                Params p;
                p.add("x", 3);
                p.tensors[0].param = at::zeros({4}, at::kFloat).requires_grad_(true);
                Communicator c(make_local_transport());
                GradReducer reducer(c, p.plan(1), p.tensors, ReduceMode::kAllReduce);
              }),
              HasSubstr("'x' is not the contiguous Float tensor of 3 elements"));
  EXPECT_THAT(error_of([] {
                Params p;
                p.add("x", 3);
                Communicator c(make_local_transport());
                GradReducer reducer(c, p.plan(1), p.tensors, ReduceMode::kAllReduce);
                reducer.finish();
              }),
              HasSubstr("finish() without a last backward pass"));
}

// Sending follows the plan although gradients come in another order, an external gradient is
// reduced last, and hooks are gone with the reducer.
TEST(Reducer, OrderExternalAndHooks) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    Communicator& c = group->world();
    Params p;
    p.add("table", 6, GradSource::kExternal);
    p.add("first", 8);
    p.add("second", 8);
    p.add("third", 8);
    const double r = static_cast<double>(launch.rank);
    {
      const BucketPlan plan = p.plan(2);
      require(plan.buckets.size() == 4, "four buckets");
      GradReducer reducer(c, plan, p.tensors, ReduceMode::kAllReduce);
      for (int step = 0; step < 2; ++step) {
        c.reset_counters();
        reducer.begin_step();
        reducer.begin_micro_batch(true);
        p.tensors[0].external_grad.add_(10 + r);
        // "third" belongs to the first bucket but its gradient comes last.
        p.tensors[1].param.sum().backward();
        p.tensors[2].param.sum().backward();
        require(c.counters().count("grad") == 0, "sent before the first bucket was complete");
        p.tensors[3].param.mul(1 + r).sum().backward();
        require(c.counters().at("grad").count == 3, "three buckets while the table is open");
        reducer.finish();
        require(c.counters().at("grad").count == 4, "four buckets");
        require(at::equal(p.tensors[0].external_grad, at::full({6}, 10.5, at::kFloat)), "table");
        require(at::equal(p.tensors[1].param.grad(), at::full({8}, 1.0, at::kFloat)), "first");
        require(at::equal(p.tensors[3].param.grad(), at::full({8}, 1.5, at::kFloat)), "third");
        const auto record = c.flight_record();
        require(record[record.size() - 4].name == "grad bucket 0" &&
                    record[record.size() - 1].name == "grad bucket 3",
                "order");
        // What an optimizer may do in between.
        p.tensors[1].param.mutable_grad() = at::Tensor();
      }
    }
    p.tensors[2].param.sum().backward();
    require(c.counters().at("grad").count == 4, "a hook outlived its reducer");
    group->close();
    return std::string();
  });
  for (const RankResult& rank : ranks) EXPECT_EQ(rank.exit_code, 0) << rank.text;
}

// A table of 12 rows of 3 of which a rank touches at most two: what the ranks touch in a step.
using Touched = std::vector<std::vector<int64_t>>;  // by rank

struct TableRun {
  ReduceMode mode;
  at::ScalarType dtype;
  int64_t most_rows = 2;
};

float touched_value(int64_t rank, int64_t row, int64_t column) {
  return static_cast<float>(1 + rank * 5 + row) + 0.25F * static_cast<float>(column);
}

at::Tensor mean_table(const Touched& touched, at::ScalarType dtype) {
  at::Tensor sum = at::zeros({12, 3}, at::kFloat);
  for (size_t r = 0; r < touched.size(); ++r) {
    for (const int64_t row : touched[r]) {
      for (int64_t c = 0; c < 3; ++c) {
        sum[row][c] +=
            touched_value(static_cast<int64_t>(r), row, c) / static_cast<float>(touched.size());
      }
    }
  }
  return sum.to(dtype);
}

// One step. The table's gradient, or this rank's part of it in fp32, must be the mean.
void table_step(GradReducer& reducer, Params& p, const TableRun& run, const at::Tensor& flags,
                const Touched& touched, int64_t rank) {
  const at::Tensor& grad = p.tensors[0].external_grad;
  reducer.begin_step();
  reducer.begin_micro_batch(true);
  p.tensors[1].param.sum().backward();
  for (const int64_t row : touched[static_cast<size_t>(rank)]) {
    flags[row].fill_(1);
    for (int64_t c = 0; c < 3; ++c) grad.view({12, 3})[row][c] += touched_value(rank, row, c);
  }
  reducer.finish();
  const at::Tensor mean = mean_table(touched, run.dtype).flatten();
  if (run.mode == ReduceMode::kAllReduce) {
    require(at::equal(grad, mean), "the means");
    for (const auto& rows : touched) {
      for (const int64_t row : rows) require(flags[row].item<bool>(), "a flag of a touched row");
    }
    // An optimizer may zero the table or not, where it skips the step.
    if (touched.front().size() == 1) grad.zero_();
    return;
  }
  const at::Tensor& shard = reducer.shard(reducer.plan().bucket_of(0));
  const int64_t begin = rank * shard.numel();
  const int64_t count = std::min<int64_t>(shard.numel(), 36 - begin);
  require(shard.scalar_type() == at::kFloat &&
              at::equal(shard.narrow(0, 0, count).to(run.dtype), mean.narrow(0, begin, count)),
          "the part of the means");
  require(at::equal(grad, at::zeros({36}, run.dtype)), "the table is zeros again");
}

// Of a table that few rows of change only these move, whatever the ranks have in common.
TEST(Reducer, RowsOfATable) {
  for (const TableRun& run : {TableRun{ReduceMode::kAllReduce, at::kFloat},
                              TableRun{ReduceMode::kAllReduce, at::kBFloat16},
                              TableRun{ReduceMode::kReduceScatter, at::kFloat},
                              TableRun{ReduceMode::kReduceScatter, at::kBFloat16}}) {
    const auto ranks = run_world(3, [&](const LaunchInfo& launch) {
      const auto group = ProcessGroup::connect(test_options(launch));
      Communicator& c = group->world();
      Params p;
      p.add("table", 36, GradSource::kExternal);
      p.add("dense", 8);
      p.tensors[0].external_grad = at::zeros({36}, run.dtype);
      p.tensors[0].row_flags = at::zeros({12}, at::kByte);
      p.specs[0].grad_dtype = run.dtype;
      p.specs[0].row_length = 3;
      p.specs[0].touched_rows = run.most_rows;
      const BucketPlan plan = p.plan(3);
      require(exchanges_rows(p.specs[0], 3) && !exchanges_rows(p.specs[0], 4), "few rows");
      GradReducer reducer(c, plan, p.tensors, run.mode);
      const at::Tensor& flags = p.tensors[0].row_flags;
      const Touched steps[] = {{{1, 7}, {7}, {}}, {{}, {}, {}}, {{0, 11}, {11, 0}, {11, 5}}};
      int64_t before = 0;
      for (const Touched& touched : steps) {
        table_step(reducer, p, run, flags, touched, launch.rank);
        const int64_t sent = c.counters().at("grad").wire_bytes - before;
        before = c.counters().at("grad").wire_bytes;
        CostOptions cost;
        cost.strategy = run.mode == ReduceMode::kAllReduce ? Strategy::kDdp : Strategy::kZero1;
        cost.gradients_stay = true;
        require(sent == predict_communication(plan, cost).at("grad").wire_bytes, "bytes sent");
        const MemoryForecast memory = predict_memory(plan, cost);
        require(reducer.gradient_bytes() == memory.gradients, "bytes of gradients");
        require(reducer.buffer_bytes() == memory.reduce_buffers, "bytes of buffers");
      }
      // More rows than were promised are no smaller sum, but none.
      reducer.begin_step();
      reducer.begin_micro_batch(true);
      p.tensors[1].param.sum().backward();
      if (launch.rank == 1) {
        p.tensors[0].external_grad.narrow(0, 0, 9).fill_(1);
        flags.fill_(1);
      }
      reducer.finish();
      const bool whole = run.mode == ReduceMode::kAllReduce;
      const at::Tensor& out = whole ? p.tensors[0].external_grad : reducer.shard(1);
      const bool mine = whole || launch.rank == 0;
      require(out.isnan().any().item<bool>() == mine, "NaN in place of an incomplete sum");
      group->close();
      return std::string();
    });
    for (const RankResult& rank : ranks) EXPECT_EQ(rank.exit_code, 0) << rank.text;
  }
}

// A gradient that never comes on one rank is zero there, also where its bucket holds that of the
// step before.
TEST(Reducer, MissingOnOneRankIsZeroThere) {
  for (const GradientBuffers buffers :
       {GradientBuffers::kStay, GradientBuffers::kHandedOver, GradientBuffers::kHandedOverOnce}) {
    const auto ranks = run_world(2, [&](const LaunchInfo& launch) {
      const auto group = ProcessGroup::connect(test_options(launch));
      Params p;
      p.add("always", 6);
      p.add("sometimes", 7);
      GradReducer reducer(group->world(), p.plan(2, 1000), p.tensors, ReduceMode::kAllReduce,
                          MissingGradients::kZeros, buffers);
      const double r = static_cast<double>(launch.rank);
      for (int step = 0; step < 3; ++step) {
        const bool both = step != 1 || launch.rank == 0;
        reducer.begin_step();
        reducer.begin_micro_batch(true);
        at::Tensor loss = p.tensors[0].param.mul(1 + r).sum();
        if (both) loss = loss + p.tensors[1].param.mul(4 + 4 * r).sum();
        loss.backward();
        reducer.finish();
        require(reducer.missing().size() == (both ? 0U : 1U), "missing names");
        const double sometimes = step == 1 ? 2 : 6;
        require(at::equal(p.tensors[0].param.grad(), at::full({6}, 1.5, at::kFloat)), "always");
        require(at::equal(p.tensors[1].param.grad(), at::full({7}, sometimes, at::kFloat)),
                "sometimes");
      }
      group->close();
      return std::string();
    });
    for (const RankResult& rank : ranks) EXPECT_EQ(rank.exit_code, 0) << rank.text;
  }
}

TEST(Reducer, RowsThatDoNotFillATableAreNamed) {
  EXPECT_THAT(error_of([] {
                Params p;
                p.add("table", 36, GradSource::kExternal);
                p.specs[0].row_length = 3;
                p.specs[0].touched_rows = 5;
                p.plan(1);
                p.specs[0].row_length = 5;
                p.plan(1);
              }),
              HasSubstr("'table' of 36 elements has rows of 5 and touches 5"));
}

// Different start values become rank 0's, and a parameter is the same object, inside the flat
// weights, after ZeRO-1 took it over.
TEST(Reducer, FirstRanksValuesAndFlatWeights) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    Params p;
    p.add("a", 5);
    p.add("b", 7);
    const at::Tensor alias = p.tensors[0].param;
    const double r = static_cast<double>(launch.rank);
    p.tensors[0].param.detach().fill_(3 + r);
    broadcast_from_first(group->world(), {p.tensors[0].param, p.tensors[1].param});
    require(at::equal(alias.detach(), at::full({5}, 3.0, at::kFloat)), "rank 0's value");
    Zero1 zero1(group->world(), p.plan(2, 1000), p.tensors);
    for (const ShardSlice& slice : zero1.slices()) {
      slice.weights.fill_(static_cast<double>(100 * slice.param) + r);
    }
    zero1.begin_gather();
    zero1.wait_parameter(0);
    zero1.wait_parameter(1);
    // [b: 7, gap, a: 5, padding] = 16: rank 0 owns b and the gap, rank 1 all of a.
    require(at::equal(alias.detach(), at::full({5}, 1.0, at::kFloat)), "a is rank 1's");
    require(at::equal(p.tensors[1].param.detach(), at::full({7}, 100.0, at::kFloat)),
            "b is rank 0's");
    group->close();
    return std::string();
  });
  for (const RankResult& rank : ranks) EXPECT_EQ(rank.exit_code, 0) << rank.text;
}

}  // namespace
}  // namespace longship::dist
