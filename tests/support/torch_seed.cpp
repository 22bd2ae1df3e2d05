// Random inputs of a test are the same in every run and in any order: the library's default
// generator of the host begins each test with a seed of the test's name.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>

namespace {

class SeedEachTest : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& info) override {
    uint64_t seed = 14695981039346656037ULL;  // FNV-1a
    for (const char c : std::string(info.test_suite_name()) + "." + info.name()) {
      seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    }
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
};

[[maybe_unused]] const bool g_added = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);  // gtest owns it
  return true;
}();

}  // namespace
