#include "apps/parity.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "base/fs.h"
#include "runtime/device.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace longship::apps {
namespace {

class TrainerOptimizer : public models::ParityOptimizer {
 public:
  TrainerOptimizer(std::vector<models::ParamInfo> parameters, const train::AdamWConfig& config,
                   const train::ScheduleConfig& schedule, const models::ParityRecipe& recipe)
      : adamw_(std::move(parameters), config),
        schedule_(schedule, recipe.peak_lr, recipe.decay_steps) {}
  double lr(int64_t step) const override { return schedule_.lr(step); }
  double step(int64_t step) override {
    const double norm = adamw_.step(lr(step));
    adamw_.zero_grad();
    return norm;
  }

 private:
  train::AdamW adamw_;
  train::Schedule schedule_;
};

struct Arguments {
  std::vector<std::string> folders;
  std::string json;
  std::string device = "cpu";
  std::string dtype = "fp32";
  std::string operators = "auto";
};

models::ParityOptions parse_options(const Arguments& arguments) {
  models::ParityOptions options;
  options.dtype = arguments.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  options.device = runtime::parse_device(arguments.device);
  const bool fused =
      arguments.operators == "fused" || (arguments.operators == "auto" && options.device.is_cuda());
  if (fused) {
    options.fused = {.norms = true,
                     .activations = true,
                     .rope = true,
                     .embedding = true,
                     .loss = true,
                     .stacked = true,
                     .attention = options.device.is_cuda()};
  }
  return options;
}

int run_parity(const Arguments& arguments) {
  const models::ParityOptions options = parse_options(arguments);
  for (const std::string& folder : arguments.folders)
    models::read_parity_case(folder);  // all must be cases
  std::FILE* text = arguments.json == "-" ? stderr : stdout;
  std::vector<models::ParityReport> reports;
  bool pass = true;
  for (const std::string& folder : arguments.folders) {
    reports.push_back(models::run_parity_case(folder, options, make_parity_optimizer));
    pass = pass && reports.back().pass();
    fmt::print(text, "{}", models::format_report(reports.back()));
    std::fflush(text);
  }
  if (!arguments.json.empty()) {
    const std::string json = models::reports_json(reports, options);
    if (arguments.json == "-") {
      fmt::print("{}", json);
    } else {
      write_file_atomic(arguments.json, json);
    }
  }
  return pass ? 0 : 1;
}

}  // namespace

std::unique_ptr<models::ParityOptimizer> make_parity_optimizer(
    std::vector<models::ParamInfo> parameters, const models::ParityRecipe& recipe) {
  train::AdamWConfig config;
  config.beta1 = recipe.beta1;
  config.beta2 = recipe.beta2;
  config.eps = recipe.eps;
  config.weight_decay = recipe.weight_decay;
  config.clip_norm = recipe.clip_norm > 0 ? std::optional(recipe.clip_norm) : std::nullopt;
  for (const std::string& name : recipe.no_decay) {
    train::ParamGroupConfig group;
    group.pattern = name;
    group.weight_decay = 0;
    config.groups.push_back(group);
  }
  train::ScheduleConfig schedule;
  schedule.beyond_end = "follow";  // recorded runs go past the end as their program did
  if (recipe.schedule == "cosine_with_warmup_openpi") {
    schedule.name = "openpi_cosine";
  } else if (recipe.schedule.starts_with("cosine_with_min_lr")) {
    schedule.name = "cosine_with_min_lr";
  } else if (recipe.schedule.starts_with("constant")) {
    schedule.name = "constant";
  } else {
    throw ConfigError(
        fmt::format("parity: the recorded schedule '{}' is not known", recipe.schedule));
  }
  if (schedule.name != "constant") {
    schedule.warmup_steps = recipe.warmup_steps;
    schedule.decay_steps = recipe.decay_steps;
    schedule.min_lr = recipe.min_lr;
  }
  return std::make_unique<TrainerOptimizer>(std::move(parameters), config, schedule, recipe);
}

void add_parity_command(CLI::App& app, std::function<int()>& action) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "parity", "Compares this program with numbers recorded from the reference implementations.");
  command->add_option("DIR", arguments->folders, "case folders (with case.json)")->required();
  command->add_option("--json", arguments->json,
                      "also write the result as JSON to a file, or - for standard output");
  command
      ->add_option("--operators", arguments->operators,
                   "auto: the fused operators on CUDA, the plain ones on the CPU; fused; plain")
      ->check(CLI::IsMember({"auto", "fused", "plain"}));
  command->add_option("--device", arguments->device,
                      "cpu, cuda or cuda:N; fp32 on cuda gets ten times the tolerances");
  command
      ->add_option("--dtype", arguments->dtype,
                   "fp32, or bf16 against the family's documented bounds")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->callback(
      [arguments, &action] { action = [arguments] { return run_parity(*arguments); }; });
}

}  // namespace longship::apps
