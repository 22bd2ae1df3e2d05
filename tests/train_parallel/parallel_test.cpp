// The section `parallel`, the plan of a policy, the shares of a batch, the talk between processes
// and what is counted.
#include "train/parallel.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "../dist/ranks.h"
#include "../train/fake_family.h"
#include "base/error.h"
#include "ops/stack_rows.h"
#include "runs.h"
#include "support/paths.h"
#include "train/assembly.h"
#include "train/replicated_sync.h"
#include "train/session.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::fake_recipe;
using ::testing::HasSubstr;

dist::LaunchInfo launched(int64_t world_size, std::optional<int64_t> per_host = std::nullopt) {
  dist::LaunchInfo out;
  out.launcher = dist::Launcher::kTorchrun;
  out.world_size = world_size;
  out.local_world_size = per_host;
  return out;
}

std::string error_of(const std::vector<std::string>& overrides, int64_t world_size = 1) {
  try {
    check_parallel(fake_recipe("runs/x", overrides), launched(world_size));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ParallelSection, RefusesWhatCannotWork) {
  EXPECT_EQ(error_of({"parallel.strategy=ddp"}, 2), "");
  EXPECT_EQ(error_of({"parallel.strategy=zero1"}, 1), "");
  EXPECT_THAT(error_of({}, 2), HasSubstr("none is for one process, but 2 were started"));
  EXPECT_EQ(error_of({"parallel.strategy=fsdp"}, 2), "");
  EXPECT_THAT(error_of({"parallel.strategy=fsdp", "parallel.bucket_mb=3"}),
              HasSubstr("parallel.bucket_mb: has no effect"));
  EXPECT_THAT(
      error_of({"parallel.strategy=fsdp", "train.device=cuda", "train.cuda_graph=per_microbatch"},
               2),
      HasSubstr("train.cuda_graph: per_microbatch"));
  EXPECT_THAT(error_of({"parallel.strategy=ddp"}, 3),
              HasSubstr("train.global_batch: 8 samples do not divide among 3 processes in "
                        "micro-batches of 4 (train.micro_batch); it must be a multiple of 12"));
  EXPECT_THAT(error_of({"parallel.strategy=ddp", "train.micro_batch=null"}, 3),
              HasSubstr("must be a multiple of 3"));
  EXPECT_THAT(error_of({"parallel.strategy=all"}), HasSubstr("parallel.strategy"));
  EXPECT_THAT(error_of({"parallel.bucket_mb=3"}), HasSubstr("no effect"));
  EXPECT_THAT(error_of({"parallel.strategy=ddp", "parallel.reshard=never"}), HasSubstr("reshard"));
  EXPECT_THAT(error_of({"parallel.strategy=ddp", "parallel.shard=4"}), HasSubstr("hsdp"));
  EXPECT_THAT(error_of({"parallel.strategy=hsdp", "parallel.shard=four"}),
              HasSubstr("'four' is neither auto nor a number"));
}

TEST(ParallelSection, ProcessesThatShareACopy) {
  const auto size = [](const std::vector<std::string>& overrides, int64_t world,
                       std::optional<int64_t> per_host) -> std::string {
    std::vector<std::string> all = {"parallel.strategy=hsdp", "train.global_batch=64"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    try {
      return std::to_string(
          hsdp_shard_size(fake_recipe("runs/x", all).parallel, launched(world, per_host)));
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(size({}, 16, 8), "8");
  EXPECT_EQ(size({"parallel.shard=4"}, 16, 8), "4");
  EXPECT_EQ(size({"parallel.replicate=4"}, 16, std::nullopt), "4");
  EXPECT_EQ(size({"parallel.replicate=2", "parallel.shard=8"}, 16, 4), "8");
  EXPECT_EQ(size({}, 8, 8), "8");
  EXPECT_THAT(size({}, 16, std::nullopt), HasSubstr("torchrun does not tell how many"));
  EXPECT_THAT(size({"parallel.shard=3"}, 16, 8),
              HasSubstr("3 processes a copy do not divide the 16"));
  EXPECT_THAT(size({"parallel.replicate=3"}, 16, 8), HasSubstr("3 groups do not divide the 16"));
  EXPECT_THAT(size({"parallel.replicate=2", "parallel.shard=4"}, 16, 8),
              HasSubstr("2 groups of 4 are 8 processes, but 16 were started"));
  EXPECT_THAT(size({"parallel.replicate=16"}, 16, 8), HasSubstr("1 leaves every process with all"));
}

TEST(ParallelSection, MicroBatchesOfSeveralProcesses) {
  const Recipe r = fake_recipe("runs/x", {"train.global_batch=24", "train.micro_batch=2"});
  EXPECT_EQ(r.train.num_micro(), 12);
  EXPECT_EQ(r.train.num_micro(3), 4);
  EXPECT_EQ(r.train.micro_size(3), 2);
  const Recipe whole = fake_recipe("runs/x", {"train.global_batch=24", "train.micro_batch=null"});
  EXPECT_EQ(whole.train.num_micro(3), 1);
  EXPECT_EQ(whole.train.micro_size(3), 8);
}

// Which processes share the work does not make it another run.
TEST(ParallelSection, DoesNotBreakExactness) {
  const Recipe a = fake_recipe("runs/x"), b = fake_recipe("runs/x", {"parallel.strategy=zero1"});
  const auto all = compare(a, b);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_FALSE(all[0].breaks_exactness);
}

// Groups of parameters that the model multiplies as one.
std::vector<std::vector<at::Tensor>> stacks_of(models::Policy& policy) {
  std::map<const void*, std::vector<at::Tensor>> by_storage;
  for (const models::ParamInfo& info : policy.parameters()) {
    if (info.role == models::ParamRole::kTrainable) {
      by_storage[info.tensor.storage().data()].push_back(info.tensor);
    }
  }
  std::vector<std::vector<at::Tensor>> out;
  for (auto& [storage, members] : by_storage) {
    if (members.size() > 1 && ops::is_stacked(members)) out.push_back(members);
  }
  return out;
}

TEST(ParallelPlan, FlatWeightsKeepStacksTogether) {
  const auto ranks = dist::run_world(2, [](const dist::LaunchInfo& launch) -> std::string {
    const auto group = dist::ProcessGroup::connect(dist::test_options(launch));
    Recipe recipe =
        testing::tiny_pi05("runs/x", {"parallel.strategy=zero1", "parallel.bucket_mb=0.01"});
    recipe.model->bind_dataset(*open_dataset(recipe));
    const auto policy = recipe.family->build(*recipe.model, build_options(recipe, at::kCPU));
    const auto stacks = stacks_of(*policy);
    const ReplicatedSync sync(group->world(), recipe.parallel, GraphMode::kNone, StepSize{},
                              *policy);
    std::string text = stacks.size() > 5 ? "" : "few stacks ";
    const auto first = [](const at::Tensor& t) { return t.storage().data(); };
    for (const auto& stack : stacks) {
      if (!ops::is_stacked(stack)) text += "a stack was torn apart ";
    }
    // Others have moved into the flat tensors too.
    if (stacks.size() > 1 && sync.plan().buckets.size() > 1 &&
        first(stacks[0][0]) == first(stacks.back()[0])) {
      text += "one bucket ";
    }
    group->close();
    return text;
  });
  for (const dist::RankResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 0);
    EXPECT_EQ(rank.text, "");
  }
}

// zero1: the weights of a unit are waited for when its turn comes, not before; engines that capture
// steps gather inside the step.
TEST(ParallelPlan, WeightsAreWaitedForUnitByUnit) {
  const auto ranks = dist::run_world(2, [](const dist::LaunchInfo& launch) -> std::string {
    const auto group = dist::ProcessGroup::connect(dist::test_options(launch));
    const Recipe recipe = testing::tiny_pi05(
        "runs/x", {"parallel.strategy=zero1", "parallel.bucket_mb=0.02", "train.threads=1"});
    recipe.model->bind_dataset(*open_dataset(recipe));
    const auto policy = recipe.family->build(*recipe.model, build_options(recipe, at::kCPU));
    policy->initialise(1, {});
    const auto make = [&](GraphMode graph) {
      return std::make_unique<ReplicatedSync>(group->world(), recipe.parallel, graph, StepSize{},
                                              *policy);
    };
    auto sync = make(GraphMode::kNone);
    const auto counts = [&] {  // gathers launched, and waited for
      std::pair<size_t, size_t> out;
      for (const dist::FlightEntry& entry : group->world().flight_record()) {
        if (!entry.name.starts_with("params")) continue;
        ++out.first;
        out.second += entry.waited_s >= 0 ? 1 : 0;
      }
      return out;
    };
    const auto batch = recipe.family->synthetic_batch(*recipe.model, {2, 1, 10}, 3);
    const size_t all = sync->plan().buckets.size();
    std::string text = all > 5 ? "" : "few buckets ";
    const auto expect = [&](size_t launched, size_t waited, const char* what) {
      const auto [have, awaited] = counts();
      if (have == launched && awaited == waited) return;
      text += fmt::format("{}: {} and {} of {} and {}; ", what, have, awaited, launched, waited);
    };
    const auto pass = [&] {
      sync->begin_micro_batch(true);
      policy->loss(*batch, {1, 2}).loss.backward();
    };
    sync->weights_changed();
    sync->begin_step();
    expect(all, 0, "before the pass");
    pass();
    expect(all, all, "after the pass");
    sync->finish();
    sync.reset();
    sync = make(GraphMode::kFullIteration);
    sync->weights_changed();
    expect(all, all, "noted");
    sync->begin_step();
    expect(2 * all, all, "inside the step");
    pass();
    sync->finish();
    expect(2 * all, 2 * all, "after the step");
    sync->weights_changed();
    sync->wait_weights();
    expect(3 * all, 3 * all, "whole for a checkpoint");
    group->close();
    return text;
  });
  for (const dist::RankResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 0);
    EXPECT_EQ(rank.text, "");
  }
}

// Buckets are sent in the order of the plan, so one that is complete late keeps those behind it
// from being sent beside the backward pass.
TEST(ParallelPlan, BucketsAreCompleteInTheirOrder) {
  for (const char* recompute : {"none", "full"}) {
    const auto ranks = dist::run_world(1, [&](const dist::LaunchInfo&) -> std::string {
      const Recipe recipe =
          testing::tiny_pi05("runs/x", {"parallel.strategy=ddp", "parallel.bucket_mb=0.02",
                                        fmt::format("train.recompute={}", recompute)});
      recipe.model->bind_dataset(*open_dataset(recipe));
      const auto policy = recipe.family->build(*recipe.model, build_options(recipe, at::kCPU));
      policy->initialise(1, {});
      const auto parameters = parameters_in_use_order(*policy);
      std::map<std::string, int64_t> came;
      int64_t count = 0;
      for (const models::ParamInfo& info : parameters) {
        if (info.role != models::ParamRole::kTrainable) continue;
        info.tensor.register_hook(
            [&, name = info.name](const at::Tensor&) { came[name] = count++; });
      }
      const auto batch = recipe.family->synthetic_batch(*recipe.model, {2, 1, 10}, 3);
      policy->loss(*batch, {1, 2}).loss.backward();
      std::string text;
      const dist::BucketPlan plan =
          plan_gradients(parameters_to_plan(*policy, 0).specs, recipe.parallel, 2);
      int64_t latest = -1, blocked = 0;
      std::string last, names;
      for (const dist::Bucket& bucket : plan.buckets) {
        int64_t complete = -1;
        for (const dist::BucketSlot& slot : bucket.slots) {
          complete = std::max(complete, came.at(plan.params[static_cast<size_t>(slot.param)].name));
        }
        const std::string& name = plan.params[static_cast<size_t>(bucket.slots.front().param)].name;
        if (complete < latest) {
          ++blocked;
          names += fmt::format("; {} behind {}", name, last);
        } else {
          latest = complete;
          last = name;
        }
      }
      return fmt::format("{} of {} wait{}", blocked, plan.buckets.size(), names);
    });
    ASSERT_EQ(ranks[0].exit_code, 0) << ranks[0].text;
    EXPECT_THAT(ranks[0].text, ::testing::StartsWith("0 of ")) << recompute;
  }
}

TEST(ParallelTalk, TextsNumbersAndWaiting) {
  const auto ranks = dist::run_world(3, [](const dist::LaunchInfo& launch) -> std::string {
    const auto parallel = Parallel::connect(
        fake_recipe("runs/x", {"parallel.strategy=ddp", "train.global_batch=12"}), launch);
    const int64_t rank = parallel->rank();
    std::string out;
    const auto texts = parallel->gather_texts(std::string(static_cast<size_t>(rank), 'x'));
    if (texts != std::vector<std::string>{"", "x", "xx"}) out += "texts ";
    if (parallel->from_first(fmt::format("from {}", rank)) != "from 0") out += "from_first ";
    const auto rows = parallel->gather({0.5 * static_cast<double>(rank), 7});
    if (rows.size() != 3 || rows[2][0] != 1.0 || rows[1][1] != 7) out += "gather ";
    if (parallel->any(false) || !parallel->any(rank == 1)) out += "any ";
    parallel->agree("colours", "blue");
    // One works, the others wait for it.
    const auto begin = std::chrono::steady_clock::now();
    parallel->together([&] {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    });
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    if (spent.count() < 0.69) out += "together ";
    try {
      parallel->together([&] { LS_CHECK(rank != 1, DataError, "episode {} is broken", 5); });
      out += "no error ";
    } catch (const DataError& error) {
      const std::string expected =
          rank == 1 ? "episode 5 is broken" : "rank 1: episode 5 is broken";
      if (error.what() != expected) out += error.what();
    }
    try {
      parallel->agree("colours", rank == 1 ? "red" : "blue");
      out += "no difference ";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      if (text.find("ranks 0, 2: 'blue', rank 1: 'red'") == std::string::npos) out += text;
    }
    parallel->close();
    return out;
  });
  for (const dist::RankResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 0) << rank.text;
    EXPECT_EQ(rank.text, "");
  }
}

// What metrics.jsonl says is what the formulas say, for every strategy.
TEST(ParallelMetrics, BytesAreThoseOfThePlan) {
  struct Case {
    const char* strategy;
    int64_t world_size = 2;
    const char* more = "parallel.timeout_s=60";
    int64_t shard_size = 0;
    const char* reshard = "after_forward";
    double besides = 0;  // bytes a step that no formula has
  };
  const double k_faults = 8;  // ddp and copies ask whether all losses are finite
  for (const Case& c :
       {Case{"ddp", 2, "parallel.bucket_mb=0.05", 0, "after_forward", k_faults},
        Case{"zero1", 2, "parallel.bucket_mb=0.05"}, Case{"fsdp"},
        Case{"fsdp", 2, "parallel.reshard=never", 0, "never"},
        Case{"fsdp", 2, "parallel.reshard=after_optimizer_step", 0, "after_optimizer_step"},
        Case{"hsdp", 4, "parallel.shard=2", 2, "after_forward", k_faults}}) {
    const std::string name = fmt::format("{}_{}", c.strategy, c.reshard);
    const fs::path root = longship::testing::scratch_dir("pbytes_" + name);
    const std::vector<std::string> overrides = {fmt::format("parallel.strategy={}", c.strategy),
                                                c.more, "train.steps=3", "train.micro_batch=1",
                                                "checkpoint.every=null"};
    testing::losses_of(testing::pi05_run(root / "run", c.world_size, overrides));
    // The plan is made in a process of its own, because this one must not compute.
    const auto plan = dist::run_world(1, [&](const dist::LaunchInfo&) {
      const Recipe recipe = testing::tiny_pi05(root / "run", overrides);
      recipe.model->bind_dataset(*open_dataset(recipe));
      const auto policy = recipe.family->build(*recipe.model, build_options(recipe, at::kCPU));
      const dist::BucketPlan buckets = plan_gradients(
          parameters_to_plan(*policy, 8 / c.world_size).specs, recipe.parallel, c.world_size);
      dist::CostOptions cost;
      cost.strategy = dist::parse_strategy(c.strategy);
      cost.micro_batches = 8 / c.world_size;
      cost.shard_size = c.shard_size;
      cost.reshard = dist::parse_reshard(c.reshard);
      int64_t bytes = 0;
      for (const auto& [collective, counter] : dist::predict_communication(buckets, cost)) {
        bytes += counter.wire_bytes;
      }
      return fmt::format("{} {}", buckets.buckets.size(), bytes);
    });
    int64_t buckets = 0, bytes = 0;
    std::istringstream(plan[0].text) >> buckets >> bytes;
    if (std::string(c.more).starts_with("parallel.bucket_mb")) {
      EXPECT_GT(buckets, 3) << plan[0].text;
    }
    std::ifstream in(root / "run/metrics.jsonl");
    int64_t lines = 0;
    for (std::string line; std::getline(in, line); ++lines) {
      const double found = 1e6 * nlohmann::json::parse(line)["comm_mb"].get<double>();
      EXPECT_NEAR(found, static_cast<double>(bytes) + c.besides, 0.5) << name << " " << line;
    }
    EXPECT_EQ(lines, 3);
    fs::remove_all(root);
  }
}

}  // namespace
}  // namespace longship::train
