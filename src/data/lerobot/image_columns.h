#pragma once
// Cameras whose pictures lie in the tables, or beside them under paths that the tables name.

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "data/checks.h"
#include "data/lerobot/layout.h"
#include "data/lerobot/table.h"
#include "data/sample.h"
#include "io/parquet.h"

namespace longship::data::lerobot {

/// Reads single pictures. Row groups of a column are kept encoded, up to kCacheBytes in all, the
/// least recently used go first; no decoded picture is kept. Thread-safe.
class ImageColumns {
 public:
  static constexpr int64_t kCacheBytes = int64_t{256} << 20;

  ImageColumns(const Layout& layout, const Table& table);

  /// The picture of a camera (into Info::cameras) in a row of the dataset. Throws DataError.
  ImagePtr read(size_t camera, int64_t row);
  /// As the table holds it.
  io::StoredPicture stored(size_t camera, int64_t row);

 private:
  using Key = std::tuple<size_t, int64_t, int64_t>;  // camera, data file, row group
  struct Group {
    Key key;
    std::shared_ptr<const std::vector<io::StoredPicture>> pictures;
    int64_t bytes = 0;
  };
  std::shared_ptr<const std::vector<io::StoredPicture>> group(const Key& key);

  std::filesystem::path root_;
  std::vector<std::string> paths_;   // of the data files
  std::vector<int64_t> file_begin_;  // first row of each, and the number of rows
  std::vector<CameraInfo> cameras_;
  std::mutex mutex_;
  std::map<int64_t, std::vector<int64_t>> group_begin_;  // of a data file, once it was opened
  std::list<Group> groups_;                              // most recently used first
  std::map<Key, std::list<Group>::iterator> group_of_;
  int64_t bytes_ = 0;
};

/// Reads the heads of all pictures in tables, on several threads: present, PNG or JPEG, 8 bits,
/// one size per camera, alpha.
void check_images(const Layout& layout, const Table& table, Findings& findings);

}  // namespace longship::data::lerobot
