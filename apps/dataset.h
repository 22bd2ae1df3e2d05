#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace longship::apps {

/// The group `longship dataset`.
void add_dataset_command(CLI::App& app, std::function<int()>& action);

/// Its subcommands, one file each.
void add_dataset_validate(CLI::App& group, std::function<int()>& action);
void add_dataset_stats(CLI::App& group, std::function<int()>& action);
void add_dataset_convert(CLI::App& group, std::function<int()>& action);
void add_dataset_split(CLI::App& group, std::function<int()>& action);
void add_dataset_merge(CLI::App& group, std::function<int()>& action);
void add_dataset_repair(CLI::App& group, std::function<int()>& action);
void add_dataset_show(CLI::App& group, std::function<int()>& action);
void add_dataset_dump(CLI::App& group, std::function<int()>& action);

}  // namespace longship::apps
