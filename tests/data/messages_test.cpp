// Every code in the source is explained in docs/data.md, and the page explains no other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "base/fs.h"
#include "base/strings.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;

// Words behind `findings.error(`, `.warn(` and `.info(`.
std::set<std::string> codes_of_source() {
  std::set<std::string> codes;
  for (const auto& entry :
       fs::recursive_directory_iterator(longship::testing::source_root() / "src/data")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = read_file(entry.path(), 10 << 20);
    for (const char* call : {"indings.error(", "indings.warn(", "indings.info("}) {
      for (size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) {
        const size_t quote = text.find_first_not_of(" \n", at + std::string_view(call).size());
        if (quote == std::string::npos || text[quote] != '"') continue;
        codes.insert(text.substr(quote + 1, text.find('"', quote + 1) - quote - 1));
      }
    }
  }
  return codes;
}

// First cells of the table behind the heading.
std::set<std::string> codes_of_page() {
  std::set<std::string> codes;
  const std::string page = read_file(longship::testing::source_root() / "docs/data.md", 10 << 20);
  const size_t begin = page.find("\n## Messages");
  EXPECT_NE(begin, std::string::npos);
  for (const std::string& line : split(page.substr(begin), '\n')) {
    if (!line.starts_with("| `")) continue;
    const std::vector<std::string> cells = split(line, '|');
    const std::string_view cell = trim(cells.at(1));
    codes.emplace(cell.substr(1, cell.size() - 2));
    EXPECT_EQ(cells.size(), 6u) << line;
    for (size_t i = 2; i < 5 && cells.size() == 6; ++i)
      EXPECT_FALSE(trim(cells[i]).empty()) << line;
  }
  return codes;
}

TEST(DataMessages, PageAndSourceHaveTheSameCodes) {
  const std::set<std::string> source = codes_of_source();
  EXPECT_GE(source.size(), 50u);
  EXPECT_EQ(source, codes_of_page());
}

}  // namespace
}  // namespace longship::data
