#pragma once
// Who am I among the processes of this run, and where do they meet? Read from the environment that
// torchrun, Slurm or mpirun gives every process. Nothing here opens a connection.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longship::dist {

enum class Launcher { kNone, kTorchrun, kSlurm, kMpi };
std::string_view launcher_name(Launcher launcher);  // "none", "torchrun", "Slurm", "mpirun"

/// Place of this process in the run. Without a launcher: rank 0 of 1.
struct LaunchInfo {
  Launcher launcher = Launcher::kNone;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;                   // among the processes of this host: picks the device
  std::optional<int64_t> local_world_size;  // processes of this host, where the launcher tells
  std::string master_addr = "127.0.0.1";    // host of the store
  uint16_t master_port = 29500;
  bool agent_store = false;   // the launcher serves the store: every rank is a client
  int64_t restart_count = 0;  // how often torchrun has started the group again
  std::string job_id;         // same on all ranks of one run and only there; may be empty
  std::string note;           // what a message about missing ranks should add; may be empty

  bool distributed() const { return world_size > 1; }
};

/// Value of an environment variable; nullopt when unset.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

/// Reads, in this order of precedence:
///   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (all five needed; set by hand
///             they work too), LOCAL_WORLD_SIZE, TORCHELASTIC_USE_AGENT_STORE,
///             TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_RUN_ID
///   mpirun    OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}, or PMI_RANK, PMI_SIZE,
///             MPI_LOCALRANKID, MPI_LOCALNRANKS; MASTER_ADDR is needed unless all ranks are on one
///             host
///   Slurm     SLURM_PROCID, SLURM_NTASKS (SLURM_STEP_NUM_TASKS), SLURM_LOCALID,
///             SLURM_JOB_NODELIST (SLURM_STEP_NODELIST): the first host is the master unless
///             MASTER_ADDR says otherwise; the port comes from the job id unless MASTER_PORT is set
/// torchrun or mpirun started inside a Slurm job win over Slurm's variables. Throws ConfigError
/// naming variable and value when one is missing, no number, out of range, or when two launchers
/// disagree about the rank.
LaunchInfo read_launch(const Environment& environment = process_environment());

/// "node[01-03,7],login" -> node01, node02, node03, node7, login. Several brackets multiply
/// ("r[1-2]n[1-2]"). Throws ConfigError naming `variable` and the list.
std::vector<std::string> expand_nodelist(std::string_view list, std::string_view variable);

/// "4(x2),3" -> {4, 4, 3}, as in SLURM_TASKS_PER_NODE. Throws ConfigError naming `variable`.
std::vector<int64_t> expand_task_counts(std::string_view list, std::string_view variable);

}  // namespace longship::dist
