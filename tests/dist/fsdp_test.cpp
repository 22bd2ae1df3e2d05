// What fsdp.h promises beyond following the single process (train_test.cpp): batches that do not
// reach every unit, loading without a whole model, memory that comes and goes, errors.
#include "dist/fsdp.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "ranks.h"

namespace longship::dist {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kWidth = 5;

// tanh(x A), tanh(. B), a frozen layer, and a scalar of the root.
struct Toy {
  explicit Toy(bool memory = true) {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                         const std::string& unit, GradSource source) {
      at::Tensor t = at::empty({0}, at::kFloat);
      t.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
      if (memory) t = values(static_cast<int64_t>(specs.size()), t.numel()).view(shape);
      t.requires_grad_(source != GradSource::kNone);
      specs.push_back({name, t.numel(), at::kFloat, unit, source});
      tensors.push_back({t, {}});
    };
    add("a", {kWidth, kWidth}, "a", GradSource::kBackward);
    add("b", {kWidth, kWidth}, "b", GradSource::kBackward);
    add("c", {kWidth, kWidth}, "c", GradSource::kNone);
    add("decays", {3}, "unread", GradSource::kNone);
    add("r", {1}, "", GradSource::kBackward);
  }
  static at::Tensor values(int64_t param, int64_t count) {
    return at::arange(count, at::kFloat).add(1 + 3 * static_cast<double>(param)).sin().mul(0.6);
  }
  at::Tensor operator[](size_t i) const { return tensors[i].param; }

  at::Tensor layer(const std::string& unit, size_t param, const at::Tensor& x) const {
    const auto f = [this, param](const Tensors& in) {
      if (during) during();
      return Tensors{at::linear(in[0], tensors[param].param).tanh()};
    };
    return nn::run_unit(hooks, unit, recompute, f, {x}).front();
  }
  at::Tensor loss(const at::Tensor& x, bool with_b) const {
    return nn::run_root(hooks, [&] {
      at::Tensor h = layer("a", 0, x);
      if (with_b) h = layer("b", 1, h);
      h = layer("c", 2, h);
      return (h * tensors[4].param).square().mean();
    });
  }

  std::vector<ParamSpec> specs;
  std::vector<ReducedParam> tensors;
  nn::UnitHooks* hooks = nullptr;
  bool recompute = false;
  std::function<void()> during;
};

at::Tensor batch(int64_t rank, int64_t micro) {
  return at::arange(3 * kWidth, at::kFloat)
      .add(7.0 * static_cast<double>(rank) + 40.0 * static_cast<double>(micro))
      .cos()
      .view({3, kWidth});
}

// Runs `body` on two ranks; it returns "" when all is well.
void on_two_ranks(const std::function<std::string(ProcessGroup&)>& body) {
  const std::vector<RankResult> ranks = run_world(2, [&](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    std::string text = body(*group);
    group->close();
    return text;
  });
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].exit_code, 0) << "rank " << r << ": " << ranks[r].text;
    EXPECT_EQ(ranks[r].text, "") << "rank " << r;
  }
}

// Means over both ranks and micro-batches of plain models' gradients; rank 1 never uses b.
Tensors expected_gradients(int64_t micro_batches) {
  Tensors out;
  const Toy plain;
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (int64_t m = 0; m < micro_batches; ++m) {
      plain.loss(batch(rank, m), rank == 0)
          .div(2.0 * static_cast<double>(micro_batches))
          .backward();
    }
  }
  for (const ReducedParam& t : plain.tensors) out.push_back(t.param.grad());
  return out;
}

std::string compare(std::span<const ShardSlice> slices, const Tensors& expected) {
  for (const ShardSlice& slice : slices) {
    const at::Tensor want = expected[static_cast<size_t>(slice.param)].view({-1}).narrow(
        0, slice.begin, slice.end - slice.begin);
    if (!at::allclose(slice.grad, want, 1e-5, 1e-7)) {
      return fmt::format("gradient of {}[{}, {})", slice.name, slice.begin, slice.end);
    }
  }
  return "";
}

TEST(Fsdp, ABatchThatDoesNotReachAUnit) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    const Tensors expected = expected_gradients(2);
    const int64_t rank = group.rank();
    for (const Reshard reshard :
         {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
      for (const bool recompute : {false, true}) {
        Toy toy;
        Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {.reshard = reshard});
        toy.hooks = fsdp.hooks();
        toy.recompute = recompute;
        for (int step = 0; step < 2; ++step) {  // nothing is left over from a step
          fsdp.begin_step();
          for (int64_t m = 0; m < 2; ++m) {
            fsdp.begin_micro_batch(m == 1);
            toy.loss(batch(rank, m), rank == 0).div(2).backward();
          }
          fsdp.finish();
          const std::string wrong = compare(fsdp.slices(), expected);
          if (!wrong.empty()) return wrong;
          fsdp.weights_changed();
        }
      }
    }
    return "";
  });
}

TEST(Fsdp, MemoryComesAndGoesWithoutNewVersions) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    Toy toy;
    Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {});
    toy.hooks = fsdp.hooks();
    int calls = 0, most = 0;
    toy.during = [&] {
      int with_memory = 0;
      for (size_t i = 0; i < 3; ++i) with_memory += toy[i].storage().nbytes() > 0 ? 1 : 0;
      most = std::max(most, with_memory);
      ++calls;
    };
    const int64_t version = toy[0]._version();
    fsdp.begin_step();
    fsdp.begin_micro_batch(true);
    toy.loss(batch(0, 0), true).backward();
    fsdp.finish();
    if (calls != 3 || most != 2) return fmt::format("{} calls, {} with memory", calls, most);
    for (size_t i = 0; i < 3; ++i) {
      if (toy[i].storage().nbytes() != 0) return fmt::format("{} still has memory", i);
    }
    if (toy[3].storage().nbytes() != 0) return "an unread parameter has memory";
    if (toy[0]._version() != version) return "gathering counts as a change";
    if (toy[0].grad().defined()) return "a whole gradient is left";
    return "";
  });
}

// The collectives of a unit are under way while the unit before it still works.
TEST(Fsdp, GathersAheadAndReducesDuringTheBackwardPass) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    Toy toy;
    Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {});
    toy.hooks = fsdp.hooks();
    toy.recompute = true;
    std::vector<int64_t> gathers, reduces;
    toy.during = [&] {
      const auto counters = group.world().counters();
      const auto count = [&](const char* name) {
        const auto at = counters.find(name);
        return at == counters.end() ? 0 : at->second.count;
      };
      gathers.push_back(count("params"));
      reduces.push_back(count("grad"));
    };
    fsdp.begin_step();
    fsdp.begin_micro_batch(true);
    toy.loss(batch(0, 0), true).backward();
    fsdp.finish();
    // Forward a, b, c: the root and one ahead. Backward c (kept), b, a: one ahead again.
    if (gathers != std::vector<int64_t>{3, 4, 4, 5, 6, 6})
      return fmt::format("gathers {} {} {} {} {} {}", gathers[0], gathers[1], gathers[2],
                         gathers[3], gathers[4], gathers[5]);
    // c is frozen; b's gradient is on its way when a's backward pass begins.
    if (reduces != std::vector<int64_t>{0, 0, 0, 0, 0, 1}) return "reduce-scatters";
    return "";
  });
}

TEST(Fsdp, PassesWithoutGradients) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    const Toy plain;
    const at::NoGradGuard no_grad;
    const double want = plain.loss(batch(0, 0), true).item<double>();
    for (const Reshard reshard :
         {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
      Toy toy;
      Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {.reshard = reshard});
      toy.hooks = fsdp.hooks();
      for (int i = 0; i < 2; ++i) {
        const double loss = toy.loss(batch(0, 0), true).item<double>();
        if (loss != want) return fmt::format("{} instead of {}", loss, want);
      }
      fsdp.weights_changed();
    }
    return "";
  });
}

TEST(Fsdp, LoadsWithoutAWholeModel) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    Toy toy(/*memory=*/false);
    Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {});
    std::set<std::string> asked, owned;
    int64_t sunk = 0;
    fsdp.load(
        [&](const std::string& name) {
          asked.insert(name);
          for (size_t i = 0; i < toy.specs.size(); ++i) {
            if (toy.specs[i].name == name) {
              return Toy::values(static_cast<int64_t>(i), toy.specs[i].numel).to(at::kDouble);
            }
          }
          throw InternalError("no " + name);
        },
        [&](const ShardSlice& slice, const at::Tensor& values) {
          owned.insert(slice.name);
          if (values.scalar_type() == at::kFloat && at::equal(values, slice.weights)) {
            sunk += values.numel();
          }
        });
    if (asked != owned) return "tensors of other ranks were asked for";
    const double all = group.world().sum({static_cast<double>(sunk)}, "check").front();
    if (all != 3 * kWidth * kWidth + 3 + 1) return fmt::format("{} elements", all);
    std::string wrong;
    fsdp.visit_whole([&](const ParamSpec& spec, const at::Tensor& whole) {
      for (size_t i = 0; i < toy.specs.size(); ++i) {
        if (toy.specs[i].name == spec.name &&
            !at::equal(whole.view({-1}), Toy::values(static_cast<int64_t>(i), spec.numel))) {
          wrong = spec.name;
        }
      }
    });
    if (!wrong.empty()) return wrong;
    try {
      fsdp.load([](const std::string&) { return at::zeros({2}); });
      return "no error";
    } catch (const ShapeError& e) {
      if (std::string(e.what()).find("has 2 elements, the model wants") == std::string::npos) {
        return e.what();
      }
    }
    return "";
  });
}

// Every element of a parameter without gradient is in one rank's slices.
TEST(Fsdp, SlicesWithoutGradient) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    Toy toy;
    Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {});
    std::vector<double> elements(toy.specs.size());
    for (const auto slices : {fsdp.slices(), fsdp.gradless_slices()}) {
      for (const ShardSlice& slice : slices) {
        const bool gradless =
            toy.specs[static_cast<size_t>(slice.param)].source == GradSource::kNone;
        if (slice.grad.defined() == gradless) return slice.name;
        elements[static_cast<size_t>(slice.param)] += static_cast<double>(slice.end - slice.begin);
      }
    }
    elements = group.world().sum(elements, "check");
    for (size_t i = 0; i < elements.size(); ++i) {
      if (elements[i] != static_cast<double>(toy.specs[i].numel)) return toy.specs[i].name;
    }
    return "";
  });
}

// A table whose gradient autograd does not know: rows added by hand, in the table's own dtype.
TEST(Fsdp, ExternalGradientsAreAveragedOnceAStep) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Toy toy;
      at::Tensor table = at::zeros({7, 3}, dtype), grad = at::zeros({7, 3}, dtype);
      toy.specs.push_back({"table", 21, dtype, "", GradSource::kExternal});
      toy.tensors.push_back({table.requires_grad_(true), grad});
      Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {});
      toy.hooks = fsdp.hooks();
      for (int step = 0; step < 2; ++step) {
        fsdp.begin_step();
        for (int64_t m = 0; m < 2; ++m) {
          fsdp.begin_micro_batch(m == 1);
          toy.loss(batch(0, m), true).backward();
          const at::NoGradGuard no_grad;
          grad.narrow(0, 2 * m + group.rank(), 1).add_(4);  // rows 0, 2 and 1, 3
        }
        fsdp.finish();
        for (const ShardSlice& slice : fsdp.slices()) {
          if (slice.name != "table") continue;
          const at::Tensor want = at::zeros({7, 3});
          want.narrow(0, 0, 4).fill_(2);
          const at::Tensor part = want.view({-1}).narrow(0, slice.begin, slice.end - slice.begin);
          if (!at::equal(slice.grad, part)) return fmt::format("[{}, {})", slice.begin, slice.end);
        }
      }
    }
    return "";
  });
}

TEST(Fsdp, OneRankAloneHasNothingToDo) {
  const std::vector<RankResult> ranks = run_world(1, [](const LaunchInfo& launch) -> std::string {
    const auto group = ProcessGroup::connect(test_options(launch));
    Toy toy;
    Fsdp fsdp({group->world()}, toy.specs, toy.tensors, {});
    if (fsdp.hooks() != nullptr) return "hooks";
    fsdp.begin_step();
    fsdp.begin_micro_batch(true);
    toy.loss(batch(0, 0), true).backward();
    fsdp.finish();
    for (const ShardSlice& slice : fsdp.slices()) {
      const at::Tensor& param = toy[static_cast<size_t>(slice.param)];
      if (slice.weights.data_ptr() != param.data_ptr()) return "copy of " + slice.name;
      if (slice.grad.data_ptr() != param.grad().data_ptr())
        return "copied gradient of " + slice.name;
    }
    if (!group->world().counters().empty()) return "collectives";
    return "";
  });
  EXPECT_EQ(ranks[0].exit_code, 0) << ranks[0].text;
  EXPECT_EQ(ranks[0].text, "");
}

std::string error_of(ProcessGroup& group, const std::function<void(Toy&, Fsdp&)>& use,
                     const std::function<void(Toy&)>& change = {}) {
  Toy toy;
  if (change) change(toy);
  try {
    Fsdp fsdp({group.world()}, toy.specs, toy.tensors, {});
    toy.hooks = fsdp.hooks();
    use(toy, fsdp);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

TEST(Fsdp, MistakesAreNamed) {
  on_two_ranks([](ProcessGroup& group) -> std::string {
    const auto step = [](Toy& toy, Fsdp& fsdp) {
      fsdp.begin_step();
      fsdp.begin_micro_batch(true);
      toy.loss(batch(0, 0), true).backward();
      fsdp.finish();
    };
    const std::vector<std::pair<std::string, std::string>> found = {
        {error_of(group, [](Toy& toy, Fsdp&) { toy.loss(batch(0, 0), true); }),
         "unit 'a' runs with gradients outside of begin_micro_batch()"},
        {error_of(group,
                  [](Toy& toy, Fsdp& fsdp) {
                    fsdp.begin_micro_batch(true);
                    toy.layer("b", 1, batch(0, 0));
                    toy.layer("a", 0, batch(0, 0));
                  }),
         "unit 'a' runs after 'b', which comes behind it in the plan"},
        {error_of(group, [](Toy& toy, Fsdp&) { toy.layer("x", 0, batch(0, 0)); }),
         "runs unit 'x', which no parameter names"},
        {error_of(group, step,
                  [](Toy& toy) {
                    toy.specs.push_back({"idle", 2, at::kFloat, "b", GradSource::kBackward});
                    toy.tensors.push_back({at::zeros({2}).requires_grad_(true), {}});
                  }),
         "gave parameters of unit 'b' no gradient (idle)"},
        {error_of(group, step, [](Toy& toy) { toy.specs[0].source = GradSource::kUnused; }),
         "parameter 'a' got a gradient although the plan says that none comes"},
        {error_of(group, step, [](Toy& toy) { toy.specs[2].forward_only = true; }),
         "a gradient will pass through unit 'c', which the plan has as forward only"},
        {error_of(group, step, [](Toy& toy) { toy.specs[1].numel = 4; }),
         "parameter 'b' is not the contiguous Float tensor of 4 elements"},
        {error_of(group, [](Toy&, Fsdp& fsdp) { fsdp.finish(); }),
         "finish() without a last backward pass"},
    };
    for (const auto& [text, wanted] : found) {
      if (text.find(wanted) == std::string::npos) return text + " instead of " + wanted;
    }
    return "";
  });
}

}  // namespace
}  // namespace longship::dist
