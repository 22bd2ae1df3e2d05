#include "data/lerobot/opened.h"

#include <utility>

#include "data/lerobot/stored_stats.h"

namespace longship::data::lerobot {

std::unique_ptr<ReaderPool> make_pool(const Layout& layout, io::VideoDecoder decoder) {
  std::vector<std::filesystem::path> paths;
  for (const VideoFile& file : layout.video_files) paths.push_back(layout.root / file.path);
  return std::make_unique<ReaderPool>(std::move(paths), decoder);
}

void judge(Opened& opened, const OpenOptions& options, Findings& findings) {
  check_rows(opened.layout, opened.table, options, findings);
  opened.pool = make_pool(opened.layout, options.decoder);
  opened.sizes = check_videos(opened.layout, *opened.pool, findings);
  opened.images = std::make_unique<ImageColumns>(opened.layout, opened.table);
  check_images(opened.layout, opened.table, findings);
  opened.stats = read_stored_stats(opened.layout, findings);
  check_stats(opened.layout, opened.table, opened.stats, options, findings);
}

std::optional<Opened> inspect(const std::filesystem::path& root, const OpenOptions& options,
                              Findings& findings) {
  std::optional<Layout> layout = read_layout(root, findings);
  if (!layout) return std::nullopt;
  Opened opened;
  opened.layout = std::move(*layout);
  opened.table = read_table(opened.layout, findings);
  judge(opened, options, findings);
  return opened;
}

}  // namespace longship::data::lerobot
