#pragma once
// Whether work drew from a generator with a state. A captured graph would draw the same numbers in
// every replay (host) or advance a state that a resumed run does not have (device), so such work is
// not captured. What the models draw comes from keys in the batch (base/rng.h).

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace longship::train {

class GeneratorWatch {
 public:
  /// Notes the states of the default generators of the host and of `device`. Not during a capture.
  explicit GeneratorWatch(c10::Device device);
  /// What has drawn since then, "" when nothing has. The work may still run on the device.
  std::string moved() const;

 private:
  struct State {
    c10::Device device;
    at::Tensor bytes;
  };
  static at::Tensor state_of(c10::Device device);
  std::vector<State> before_;
};

}  // namespace longship::train
