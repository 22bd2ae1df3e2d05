#include "data/broken_case.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/paths.h"

namespace longship::testing {

namespace fs = std::filesystem;

std::vector<std::string> broken_case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dataset_path("broken/cases"))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string broken_test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
      '_');
  return name;
}

BrokenCase build_broken_case(const std::string& id) {
  const fs::path folder = dataset_path("broken/cases") / id;
  const nlohmann::json json = parse_json_file(folder / "case.json");
  BrokenCase out;
  out.id = id;
  out.root = scratch_dir("broken_" + id);
  if (!json["base"].is_null()) {
    fs::copy(dataset_path(json["base"].get<std::string>()), out.root,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  for (const auto& name : json["remove"]) fs::remove(out.root / name.get<std::string>());
  for (const auto& name : json["files"]) {
    const fs::path target = out.root / name.get<std::string>();
    fs::create_directories(target.parent_path());
    fs::remove(target);  // the base may be read-only
    fs::copy_file(folder / "files" / name.get<std::string>(), target);
  }
  const nlohmann::json& expect = json["expect"];
  out.outcome = expect["outcome"].get<std::string>();
  out.exit = expect["exit"].get<int>();
  out.mentions = expect["mentions"].get<std::vector<std::string>>();
  if (!expect["samples"].is_null()) out.samples = expect["samples"].get<int64_t>();
  out.bar_codes_exact = expect["bar_codes_exact"].get<bool>();
  return out;
}

namespace {

int64_t read_bits(const data::Image& image, int64_t first_row, int64_t first_block, int64_t count) {
  const int64_t block = std::min<int64_t>(8, image.width / 8);
  int64_t value = 0;
  for (int64_t bit = 0; bit < count; ++bit) {
    int64_t sum = 0;
    for (int64_t y = first_row; y < first_row + 16; ++y) {
      for (int64_t x = (first_block + bit) * block; x < (first_block + bit + 1) * block; ++x) {
        for (int64_t c = 0; c < 3; ++c) {
          sum += image.rgb[static_cast<size_t>((y * image.width + x) * 3 + c)];
        }
      }
    }
    value = value * 2 + (sum > 128 * 16 * block * 3 ? 1 : 0);
  }
  return value;
}

}  // namespace

BarCode read_bar_code(const data::Image& image) {
  return {read_bits(image, 0, 0, 8), read_bits(image, 16, 0, 4), read_bits(image, 16, 4, 4)};
}

}  // namespace longship::testing
