#pragma once
// How far several processes may be from one, over 20 steps of the tiny Pi0.5; docs/distributed.md
// says why. Measured values are printed by the tests.

namespace longship::train {

constexpr double kFp32LossBound = 1e-4;
constexpr double kFp32StateBound = 1e-2;
constexpr double kBf16LossBound = 2e-2;
// A bf16 wire rounds each gradient once more.
constexpr double kWireLossBound = 1e-2;

}  // namespace longship::train
