#pragma once
// How far several processes may be from one, over 20 steps of the tiny Pi0.5; docs/distributed.md
// says why. Measured values are printed by the tests.

namespace longship::train {

// Measured: 1.8e-7 at 1 to 4 ranks.
constexpr double kFp32LossBound = 2e-6;
// Of weights, moments and averages, relative to the largest of each tensor: AdamW divides small
// gradients by their own size.
constexpr double kFp32StateBound = 1e-2;
// Measured: 4.1e-3. bf16 rounds every activation and gradient.
constexpr double kBf16LossBound = 1e-2;
// Gradients that are rounded to bf16 once more before they are added up. Measured: 1.5e-4.
constexpr double kWireLossBound = 1e-3;

}  // namespace longship::train
