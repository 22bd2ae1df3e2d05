#include "dist/launch.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/strings.h"

namespace longship::dist {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;
constexpr size_t kMaxHosts = 1 << 20;
constexpr int64_t kDefaultPort = 29500;

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// Typed access to the variables of one launcher.
class Variables {
 public:
  Variables(const Environment& environment, Launcher launcher)
      : environment_(environment), launcher_(launcher) {}

  std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = environment_(name);
    if (value && trim(*value).empty()) return std::nullopt;
    return value;
  }
  std::string required_text(const std::string& name, std::string_view because) const {
    std::optional<std::string> value = text(name);
    LS_CHECK(value.has_value(), ConfigError, "environment of {}: {} is {}; {}",
             launcher_name(launcher_), name, environment_(name) ? "empty" : "not set", because);
    return *value;
  }
  std::optional<int64_t> integer(const std::string& name, int64_t low, int64_t high) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int64_t> number = parse_integer(trim(*value));
    LS_CHECK(number && *number >= low && *number <= high, ConfigError,
             "environment of {}: {}='{}' is no whole number from {} to {}",
             launcher_name(launcher_), name, printable(*value), low, high);
    return number;
  }
  int64_t required_integer(const std::string& name, int64_t low, int64_t high,
                           std::string_view because) const {
    required_text(name, because);
    return *integer(name, low, high);
  }

 private:
  const Environment& environment_;
  Launcher launcher_;
};

void check_below(Launcher launcher, std::string_view name, int64_t value, std::string_view limit,
                 int64_t count) {
  LS_CHECK(value < count, ConfigError, "environment of {}: {}={} must be below {}={}",
           launcher_name(launcher), name, value, limit, count);
}

// Everything about local ranks: in range, and not more processes here than in the whole run.
void check_local(const LaunchInfo& info, std::string_view local_rank, std::string_view local_size,
                 std::string_view world) {
  if (info.local_world_size) {
    LS_CHECK(*info.local_world_size <= info.world_size, ConfigError,
             "environment of {}: {}={} is more than {}={}", launcher_name(info.launcher),
             local_size, *info.local_world_size, world, info.world_size);
    check_below(info.launcher, local_rank, info.local_rank, local_size, *info.local_world_size);
  } else {
    check_below(info.launcher, local_rank, info.local_rank, world, info.world_size);
  }
}

void read_meeting_point(const Variables& variables, LaunchInfo& info) {
  if (const auto addr = variables.text("MASTER_ADDR")) info.master_addr = trim(*addr);
  if (const auto port = variables.integer("MASTER_PORT", 1, 65535)) {
    info.master_port = static_cast<uint16_t>(*port);
  }
}

LaunchInfo read_torchrun(const Environment& environment) {
  const Variables variables(environment, Launcher::kTorchrun);
  constexpr std::string_view because =
      "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT go together: start with torchrun "
      "--no-python, or set all five, or none for a single process";
  LaunchInfo info;
  info.launcher = Launcher::kTorchrun;
  info.world_size = variables.required_integer("WORLD_SIZE", 1, kMaxRanks, because);
  info.rank = variables.required_integer("RANK", 0, kMaxRanks, because);
  info.local_rank = variables.required_integer("LOCAL_RANK", 0, kMaxRanks, because);
  variables.required_text("MASTER_ADDR", because);
  variables.required_text("MASTER_PORT", because);
  read_meeting_point(variables, info);
  check_below(info.launcher, "RANK", info.rank, "WORLD_SIZE", info.world_size);
  info.local_world_size = variables.integer("LOCAL_WORLD_SIZE", 1, kMaxRanks);
  check_local(info, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE");
  if (const auto agent = variables.text("TORCHELASTIC_USE_AGENT_STORE")) {
    LS_CHECK(*agent == "True" || *agent == "False", ConfigError,
             "environment of torchrun: TORCHELASTIC_USE_AGENT_STORE='{}' is neither True nor False",
             printable(*agent));
    info.agent_store = *agent == "True";
  }
  info.restart_count = variables.integer("TORCHELASTIC_RESTART_COUNT", 0, INT64_MAX).value_or(0);
  info.job_id = variables.text("TORCHELASTIC_RUN_ID").value_or("");
  return info;
}

LaunchInfo read_mpi(const Environment& environment, bool open_mpi) {
  const Variables variables(environment, Launcher::kMpi);
  const std::string rank = open_mpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK";
  const std::string size = open_mpi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE";
  const std::string local = open_mpi ? "OMPI_COMM_WORLD_LOCAL_RANK" : "MPI_LOCALRANKID";
  const std::string local_size = open_mpi ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "MPI_LOCALNRANKS";
  const std::string because = fmt::format("mpirun sets it together with {}", rank);
  LaunchInfo info;
  info.launcher = Launcher::kMpi;
  info.world_size = variables.required_integer(size, 1, kMaxRanks, because);
  info.rank = variables.required_integer(rank, 0, kMaxRanks, "mpirun sets it");
  check_below(info.launcher, rank, info.rank, size, info.world_size);
  info.local_world_size = variables.integer(local_size, 1, kMaxRanks);
  info.local_rank = info.world_size == 1 ? variables.integer(local, 0, kMaxRanks).value_or(0)
                                         : variables.required_integer(local, 0, kMaxRanks, because);
  check_local(info, local, local_size, size);
  info.job_id = environment("OMPI_MCA_orte_hnp_uri").value_or("");
  const bool one_host = info.local_world_size == info.world_size;
  if (info.world_size > 1 && !one_host) {
    variables.required_text("MASTER_ADDR",
                            "with ranks on several hosts, pass the host of rank 0 to all of them: "
                            "mpirun -x MASTER_ADDR=HOST (or -genv MASTER_ADDR HOST)");
  }
  read_meeting_point(variables, info);
  return info;
}

LaunchInfo read_slurm(const Environment& environment) {
  const Variables variables(environment, Launcher::kSlurm);
  LaunchInfo info;
  info.launcher = Launcher::kSlurm;
  const bool step = variables.text("SLURM_STEP_NUM_TASKS").has_value();
  const std::string size = step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  constexpr std::string_view because = "srun sets it together with SLURM_PROCID";
  info.rank = variables.required_integer("SLURM_PROCID", 0, kMaxRanks, because);
  info.world_size = variables.required_integer(size, 1, kMaxRanks, because);
  check_below(info.launcher, "SLURM_PROCID", info.rank, size, info.world_size);
  info.local_rank = info.world_size == 1
                        ? variables.integer("SLURM_LOCALID", 0, kMaxRanks).value_or(0)
                        : variables.required_integer("SLURM_LOCALID", 0, kMaxRanks, because);
  std::string counts = "SLURM_TASKS_PER_NODE";
  if (variables.text("SLURM_STEP_TASKS_PER_NODE")) counts = "SLURM_STEP_TASKS_PER_NODE";
  if (const auto list = variables.text(counts)) {
    const std::vector<int64_t> tasks = expand_task_counts(*list, counts);
    const auto node = variables.integer("SLURM_NODEID", 0, kMaxRanks);
    if (node && *node < static_cast<int64_t>(tasks.size())) {
      info.local_world_size = tasks[static_cast<size_t>(*node)];
    }
  }
  check_local(info, "SLURM_LOCALID", counts, size);
  std::string hosts = "SLURM_JOB_NODELIST";
  if (variables.text("SLURM_STEP_NODELIST")) hosts = "SLURM_STEP_NODELIST";
  if (info.world_size > 1 && !variables.text("MASTER_ADDR")) {
    info.master_addr =
        expand_nodelist(variables.required_text(hosts, "it names the host of rank 0"), hosts)
            .front();
  }
  const int64_t job = variables.integer("SLURM_JOB_ID", 0, INT64_MAX / 2).value_or(0);
  const auto step_id = variables.integer("SLURM_STEP_ID", 0, INT64_MAX / 2);
  // Below the ports that the system hands out itself, and another one for another job or step.
  info.master_port = static_cast<uint16_t>(
      job == 0 ? kDefaultPort : 20000 + (job % 10000 + step_id.value_or(0) % 10000) % 10000);
  if (job != 0) info.job_id = fmt::format("{}.{}", job, step_id.value_or(0));
  if (!step_id) {
    info.note = "SLURM_STEP_ID is not set: was the program started without srun?";
  }
  read_meeting_point(variables, info);
  return info;
}

// RANK exported by hand on top of a launcher that numbers the processes itself.
void check_agreement(const Environment& environment, const LaunchInfo& info,
                     const std::string& rank, const std::string& size) {
  const std::optional<std::string> other_rank = environment(rank);
  const std::optional<std::string> other_size = environment(size);
  if (!other_rank || !other_size) return;
  const std::optional<int64_t> number = parse_integer(trim(*other_rank));
  // A launcher of one process per host may start a second launcher there: other counts are fine.
  if (parse_integer(trim(*other_size)) != info.world_size || !number) return;
  LS_CHECK(*number == info.rank, ConfigError,
           "environment: RANK={} but {}={}, both of {} processes; unset RANK, WORLD_SIZE and "
           "LOCAL_RANK, or make them agree",
           info.rank, rank, *number, info.world_size);
}

}  // namespace

std::string_view launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kSlurm:
      return "Slurm";
    case Launcher::kMpi:
      return "mpirun";
    case Launcher::kNone:
      break;
  }
  return "none";
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

LaunchInfo read_launch(const Environment& environment) {
  const auto set = [&](const char* name) { return environment(name).has_value(); };
  if (set("RANK") || set("WORLD_SIZE") || set("LOCAL_RANK")) {
    LaunchInfo info = read_torchrun(environment);
    if (!set("TORCHELASTIC_RUN_ID")) {
      check_agreement(environment, info, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
      check_agreement(environment, info, "PMI_RANK", "PMI_SIZE");
      check_agreement(environment, info, "SLURM_PROCID", "SLURM_NTASKS");
    }
    return info;
  }
  if (set("OMPI_COMM_WORLD_RANK") || set("OMPI_COMM_WORLD_SIZE")) {
    return read_mpi(environment, true);
  }
  if (set("PMI_RANK") || set("PMI_SIZE")) return read_mpi(environment, false);
  if (set("SLURM_PROCID")) return read_slurm(environment);
  return {};
}

namespace {

[[noreturn]] void bad_list(std::string_view variable, std::string_view list, std::string_view why) {
  throw ConfigError(
      fmt::format("environment of Slurm: {}='{}': {}", variable, printable(list), why));
}

// The numbers of one bracket, "01-03,7", with their leading zeros.
std::vector<std::string> expand_bracket(std::string_view inside, std::string_view list,
                                        std::string_view variable) {
  std::vector<std::string> out;
  for (const std::string& part : split(inside, ',')) {
    const std::vector<std::string> ends = split(part, '-');
    const auto first = parse_integer(ends.front()), last = parse_integer(ends.back());
    if (ends.size() > 2 || !first || !last || *first < 0 || *last < *first) {
      bad_list(variable, list, fmt::format("'{}' is no number and no range", printable(part)));
    }
    if (*last - *first >= static_cast<int64_t>(kMaxHosts)) {
      bad_list(variable, list, fmt::format("'{}' is too long a range", printable(part)));
    }
    for (int64_t n = *first; n <= *last; ++n) {
      out.push_back(fmt::format("{:0{}}", n, ends.front().size()));
    }
  }
  return out;
}

// One host expression without commas outside of brackets.
std::vector<std::string> expand_hosts(std::string_view text, std::string_view list,
                                      std::string_view variable) {
  std::vector<std::string> hosts = {""};
  while (!text.empty()) {
    const size_t open = text.find('[');
    const std::string_view plain = text.substr(0, open);
    if (plain.find(']') != std::string_view::npos) bad_list(variable, list, "']' without '['");
    for (std::string& host : hosts) host += plain;
    if (open == std::string_view::npos) break;
    const size_t close = text.find(']', open);
    if (close == std::string_view::npos) bad_list(variable, list, "'[' without ']'");
    const std::vector<std::string> numbers =
        expand_bracket(text.substr(open + 1, close - open - 1), list, variable);
    if (hosts.size() * numbers.size() > kMaxHosts) bad_list(variable, list, "too many hosts");
    std::vector<std::string> longer;
    for (const std::string& host : hosts) {
      for (const std::string& number : numbers) longer.push_back(host + number);
    }
    hosts = std::move(longer);
    text = text.substr(close + 1);
  }
  if (hosts.front().empty()) bad_list(variable, list, "a host without a name");
  return hosts;
}

}  // namespace

std::vector<std::string> expand_nodelist(std::string_view list, std::string_view variable) {
  std::vector<std::string> out;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') ++depth;
    if (i < list.size() && list[i] == ']') --depth;
    if (i < list.size() && (list[i] != ',' || depth > 0)) continue;
    const auto hosts = expand_hosts(trim(list.substr(begin, i - begin)), list, variable);
    out.insert(out.end(), hosts.begin(), hosts.end());
    begin = i + 1;
  }
  return out;
}

std::vector<int64_t> expand_task_counts(std::string_view list, std::string_view variable) {
  std::vector<int64_t> out;
  for (const std::string& part : split(list, ',')) {
    const size_t open = part.find("(x");
    const auto count = parse_integer(std::string_view(part).substr(0, open));
    std::optional<int64_t> repeat = 1;
    if (open != std::string::npos) {
      if (part.back() != ')') bad_list(variable, list, "'(x' without ')'");
      repeat = parse_integer(std::string_view(part).substr(open + 2, part.size() - open - 3));
    }
    if (!count || *count < 1 || !repeat || *repeat < 1 || *repeat > kMaxRanks) {
      bad_list(variable, list,
               fmt::format("'{}' is neither COUNT nor COUNT(xNODES)", printable(part)));
    }
    out.insert(out.end(), static_cast<size_t>(*repeat), *count);
  }
  return out;
}

}  // namespace longship::dist
