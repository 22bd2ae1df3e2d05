// longship dataset: everything about a dataset but training on it.
#include "apps/dataset.h"

namespace longship::apps {

void add_dataset_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* group = app.add_subcommand(
      "dataset", "Check, measure, convert, cut, join, mend, look at and dump datasets");
  group->require_subcommand(1);
  group->footer(
      "PATH is the folder of a LeRobot dataset (v2.0, v2.1 or v3.0). Commands that write make a "
      "new "
      "dataset of format v3.0 at NEW and change nothing at PATH; NEW appears whole or not at all.\n"
      "docs/data.md explains every message and its cure.");
  add_dataset_validate(*group, action);
  add_dataset_stats(*group, action);
  add_dataset_convert(*group, action);
  add_dataset_split(*group, action);
  add_dataset_merge(*group, action);
  add_dataset_repair(*group, action);
  add_dataset_show(*group, action);
  add_dataset_dump(*group, action);
}

}  // namespace longship::apps
