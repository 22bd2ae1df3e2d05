#pragma once
// States with known values, and groups of processes that speak through a folder.

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "train/checkpoint_io.h"

namespace longship::train::testing {

/// Ranks that are processes of one machine: every agreement is one file a rank. A peer that does
/// not come within `timeout_s` is lost.
class FolderGroup : public CheckpointGroup {
 public:
  FolderGroup(std::filesystem::path folder, int64_t rank, int64_t world_size, double timeout_s = 20)
      : folder_(std::move(folder)), rank_(rank), world_size_(world_size), timeout_s_(timeout_s) {}
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  void barrier() override { agree(true, ""); }
  Agreement agree(bool ok, const std::string& note) override {
    write_file_atomic(file(rank_), (ok ? "1" : "0") + note);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s_);
    Agreement out;
    for (int64_t r = 0; r < world_size_; ++r) {
      while (!std::filesystem::exists(file(r))) {
        if (std::chrono::steady_clock::now() > until) {
          throw Error(ExitCode::kPeer, "rank " + std::to_string(r) + " is lost");
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      const std::string text = read_file(file(r), 1 << 20);
      out.ok = out.ok && text[0] == '1';
      out.failed.push_back(text[0] == '1' ? 0 : 1);
      out.notes.push_back(text.substr(1));
    }
    ++number_;
    return out;
  }

 private:
  std::filesystem::path file(int64_t rank) const {
    return folder_ / (std::to_string(number_) + "." + std::to_string(rank));
  }
  std::filesystem::path folder_;
  int64_t rank_, world_size_;
  double timeout_s_;
  int64_t number_ = 0;
};

/// Sizes that no small world divides.
std::vector<std::pair<std::string, at::Tensor>> known_state(int64_t step, bool with_average);
/// What one of `world_size` ranks saves of known_state(step); rank 0 the rest too.
SaveParts known_parts(int64_t step, int64_t rank, int64_t world_size, bool with_average = false);
/// Whether a checkpoint holds exactly known_state(its step).
bool holds_known_state(const std::filesystem::path& checkpoint, int64_t step,
                       bool with_average = false);
/// Bytes of a file.
std::string bytes_of_file(const std::filesystem::path& file);

}  // namespace longship::train::testing
