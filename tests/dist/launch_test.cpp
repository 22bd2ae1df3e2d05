#include "dist/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace longship::dist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

LaunchInfo read(const Variables& variables) {
  return read_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Variables torchrun() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "node1"},
          {"MASTER_PORT", "29511"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_RUN_ID", "job7"}};
}

Variables slurm() {
  return {{"SLURM_PROCID", "5"},
          {"SLURM_NTASKS", "7"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_JOB_ID", "12345678"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_JOB_NODELIST", "node[03-04,7],login1"},
          {"SLURM_STEP_TASKS_PER_NODE", "4,2,1"}};
}

TEST(Launch, NothingIsASingleProcess) {
  const LaunchInfo info = read({});
  EXPECT_EQ(info.launcher, Launcher::kNone);
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.world_size, 1);
  EXPECT_FALSE(info.distributed());
}

TEST(Launch, Torchrun) {
  const LaunchInfo info = read(torchrun());
  EXPECT_EQ(info.launcher, Launcher::kTorchrun);
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.master_addr, "node1");
  EXPECT_EQ(info.master_port, 29511);
  EXPECT_TRUE(info.agent_store);
  EXPECT_EQ(info.restart_count, 2);
  EXPECT_EQ(info.job_id, "job7");
}

TEST(Launch, TorchrunInsideSlurmWins) {
  Variables both = torchrun();
  for (const auto& entry : slurm()) both.insert(entry);
  EXPECT_EQ(read(both).launcher, Launcher::kTorchrun);
  EXPECT_EQ(read(both).rank, 3);
}

TEST(Launch, EachMissingVariableOfTorchrunIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables some = torchrun();
    some.erase(name);
    EXPECT_THAT(error_of(some), HasSubstr(std::string(name) + " is not set")) << name;
    some[name] = " ";
    EXPECT_THAT(error_of(some), HasSubstr(std::string(name) + " is empty")) << name;
  }
}

TEST(Launch, WrongNumbersAreNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"RANK", "4"},
      {"RANK", "-1"},
      {"RANK", "1x"},
      {"WORLD_SIZE", "0"},
      {"LOCAL_RANK", "2"},
      {"MASTER_PORT", "0"},
      {"MASTER_PORT", "70000"},
      {"WORLD_SIZE", "1e3"},
      {"LOCAL_WORLD_SIZE", "5"},
      {"TORCHELASTIC_USE_AGENT_STORE", "yes"}};
  for (const auto& [name, value] : wrong) {
    Variables some = torchrun();
    some[name] = value;
    const std::string error = error_of(some);
    EXPECT_THAT(error, HasSubstr(name)) << name << "=" << value;
    EXPECT_THAT(error, HasSubstr(value)) << name << "=" << value;
  }
}

TEST(Launch, Slurm) {
  const LaunchInfo info = read(slurm());
  EXPECT_EQ(info.launcher, Launcher::kSlurm);
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 7);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.master_addr, "node03");
  EXPECT_EQ(info.master_port, 20000 + 5680);
  EXPECT_EQ(info.job_id, "12345678.2");
  EXPECT_EQ(info.note, "");
}

TEST(Launch, SlurmVariants) {
  Variables some = slurm();
  some["SLURM_STEP_NUM_TASKS"] = "6";
  some["SLURM_STEP_NODELIST"] = "login1";
  some.erase("SLURM_STEP_ID");
  LaunchInfo info = read(some);
  EXPECT_EQ(info.world_size, 6);
  EXPECT_EQ(info.master_addr, "login1");
  EXPECT_THAT(info.note, HasSubstr("srun"));
  some["MASTER_ADDR"] = "10.0.0.1";
  some["MASTER_PORT"] = "1234";
  info = read(some);
  EXPECT_EQ(info.master_addr, "10.0.0.1");
  EXPECT_EQ(info.master_port, 1234);
}

TEST(Launch, SlurmErrors) {
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_NODELIST"}) {
    Variables some = slurm();
    some.erase(name);
    EXPECT_THAT(error_of(some), HasSubstr(std::string(name) + " is not set")) << name;
  }
  Variables some = slurm();
  some["SLURM_PROCID"] = "7";
  EXPECT_THAT(error_of(some), HasSubstr("SLURM_PROCID=7 must be below SLURM_NTASKS=7"));
  some = slurm();
  some["SLURM_LOCALID"] = "2";
  EXPECT_THAT(error_of(some), HasSubstr("SLURM_LOCALID=2"));
}

TEST(Launch, OpenMpi) {
  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"SLURM_PROCID", "0"}};
  LaunchInfo info = read(mpi);
  EXPECT_EQ(info.launcher, Launcher::kMpi);
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.master_addr, "127.0.0.1");
  mpi["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  mpi["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_THAT(error_of(mpi), HasSubstr("MASTER_ADDR is not set"));
  mpi["MASTER_ADDR"] = "alpha";
  EXPECT_EQ(read(mpi).master_addr, "alpha");
}

TEST(Launch, Pmi) {
  const Variables mpi = {{"PMI_RANK", "3"},
                         {"PMI_SIZE", "4"},
                         {"MPI_LOCALRANKID", "1"},
                         {"MPI_LOCALNRANKS", "2"},
                         {"MASTER_ADDR", "beta"}};
  const LaunchInfo info = read(mpi);
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_THAT(error_of({{"PMI_SIZE", "4"}}), HasSubstr("PMI_RANK is not set"));
}

TEST(Launch, LaunchersThatContradict) {
  Variables some = torchrun();
  some.erase("TORCHELASTIC_RUN_ID");
  some["OMPI_COMM_WORLD_RANK"] = "2";
  some["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_THAT(error_of(some), HasSubstr("RANK=3 but OMPI_COMM_WORLD_RANK=2"));
  some["OMPI_COMM_WORLD_RANK"] = "3";
  EXPECT_EQ(error_of(some), "no error");
  // One task of Slurm per host that starts its own processes: different counts are no conflict.
  some["SLURM_PROCID"] = "1";
  some["SLURM_NTASKS"] = "2";
  EXPECT_EQ(error_of(some), "no error");
}

TEST(Launch, Nodelists) {
  EXPECT_THAT(expand_nodelist("node[01-03,7]", "X"),
              ElementsAre("node01", "node02", "node03", "node7"));
  EXPECT_THAT(expand_nodelist("a,b[9-11]-ib,c", "X"),
              ElementsAre("a", "b9-ib", "b10-ib", "b11-ib", "c"));
  EXPECT_THAT(expand_nodelist("r[1-2]n[08-09]", "X"),
              ElementsAre("r1n08", "r1n09", "r2n08", "r2n09"));
  for (const char* wrong :
       {"", "a,,b", "n[1-", "n[2-1]", "n[]", "n[1-2-3]", "n]1", "n[a]", "n[0-99999999999]"}) {
    EXPECT_THROW(expand_nodelist(wrong, "SLURM_JOB_NODELIST"), ConfigError) << wrong;
  }
  EXPECT_THAT(expand_task_counts("4(x2),3", "X"), ElementsAre(4, 4, 3));
  for (const char* wrong : {"", "0", "4(x", "4(x0)", "x2", "4(x2)y"}) {
    EXPECT_THROW(expand_task_counts(wrong, "X"), ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace longship::dist
