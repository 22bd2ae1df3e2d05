#pragma once
// The processes that write one checkpoint together.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace longship::train {

/// What agree() found out; the same on every rank.
struct Agreement {
  bool ok = true;                  // of all ranks
  std::vector<std::string> notes;  // by rank
  std::vector<uint8_t> failed;     // by rank: 1 where `ok` was false
};

/// The ranks of a run, as far as saving needs them. Calls come in the same order on every rank,
/// from one thread at a time, which is not the training thread when checkpoint.async is on: an
/// implementation over collectives needs a group of its own. A lost peer is an exception, which
/// passes through.
class CheckpointGroup {
 public:
  virtual ~CheckpointGroup() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// Returns when every rank has come here. What a rank wrote to the run folder before it is seen
  /// by the others behind it.
  virtual void barrier() = 0;
  /// A barrier that also tells every rank how the others fare: `note` is the reason when `ok` is
  /// false, else a message of a few hundred bytes.
  virtual Agreement agree(bool ok, const std::string& note) = 0;
  /// Runs `work`, which may take very different times on the ranks and does not throw; returns when
  /// all are done. A rank that is lost meanwhile is noticed. Collective.
  virtual void working(const std::function<void()>& work) { work(); }
  /// The step that messages about the group name.
  virtual void set_step(int64_t /*step*/) {}
};

/// One process.
class SingleProcess : public CheckpointGroup {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  void barrier() override {}
  Agreement agree(bool ok, const std::string& note) override {
    return {ok, {note}, {ok ? uint8_t{0} : uint8_t{1}}};
  }
};

}  // namespace longship::train
