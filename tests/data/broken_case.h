#pragma once
// Builds a damaged dataset from its difference to a base, as apply_case.py does, and reads bar
// codes off its pictures.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/sample.h"

namespace longship::testing {

struct BrokenCase {
  std::string id;
  std::filesystem::path root;  // the built dataset
  std::string outcome;         // ok, info, warn, error
  int exit = 0;
  std::vector<std::string> mentions;
  int64_t samples = -1;  // -1: none expected
  bool bar_codes_exact = false;
};

/// Names of all cases.
std::vector<std::string> broken_case_names();
/// A case's name as the name of a parameterised test.
std::string broken_test_name(const ::testing::TestParamInfo<std::string>& info);
/// Copies the base to a scratch folder, removes and lays over.
BrokenCase build_broken_case(const std::string& id);

struct BarCode {
  int64_t frame = 0, camera = 0, episode = 0;
};
/// Rows 0-15: frame number in eight blocks, most significant first; rows 16-31: camera and episode,
/// four blocks each.
BarCode read_bar_code(const data::Image& image);

}  // namespace longship::testing
