// Any bytes give a document that prints and parses back to itself, or a DataError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  nlohmann::ordered_json parsed;
  try {
    parsed = longship::parse_ordered_json_text(text, "fuzz.json");
  } catch (const longship::DataError&) {
    return 0;
  }
  const std::string printed = parsed.dump();
  if (longship::parse_ordered_json_text(printed, "printed.json") != parsed) std::abort();
  return 0;
}
