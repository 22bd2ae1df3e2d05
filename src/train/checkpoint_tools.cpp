// Verifying, consolidating and resharding; comparing is in checkpoint_diff.cpp.
#include "train/checkpoint_tools.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/sha256.h"
#include "io/sharded_state.h"
#include "io/tensor_io.h"
#include "io/weights.h"
#include "train/checkpoint_state.h"
#include "train/run_folder.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

template <class Work>
void note_fault(std::vector<std::string>& faults, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    faults.emplace_back(error.what());
  }
}

int64_t step_in_manifest(const fs::path& checkpoint) {
  const nlohmann::json manifest =
      parse_json_file(checkpoint / kManifestFile, {.code = ExitCode::kCheckpoint});
  return manifest.value("step", int64_t{-1});
}

void require_fresh(const fs::path& out, const char* option) {
  LS_CHECK(!fs::exists(fs::symlink_status(out)), ConfigError,
           "{} {}: it exists already; nothing is overwritten, choose another place", option,
           out.string());
}

void copy_whole(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  fs::copy_file(from, to, failure);
  LS_CHECK(!failure, CheckpointError, "cannot copy {} to {}: {}", from.string(), to.string(),
           failure.message());
}

/// Counts bytes of a long job.
class Meter {
 public:
  Meter(uint64_t total, const BytesProgress& report) : total_(total), report_(report) {}
  void add(uint64_t bytes) {
    done_ += bytes;
    if (report_) report_(std::min(done_, total_), total_);
  }

 private:
  uint64_t total_, done_ = 0;
  const BytesProgress& report_;
};

}  // namespace

Verified verify_checkpoint(const fs::path& checkpoint, const BytesProgress& progress) {
  Verified out;
  out.folder = checkpoint;
  out.faults = manifest_faults(checkpoint, progress);
  note_fault(out.faults, [&] {
    if (!fs::exists(checkpoint / kManifestFile)) return;  // said already
    const nlohmann::json manifest =
        parse_json_file(checkpoint / kManifestFile, {.code = ExitCode::kCheckpoint});
    out.step = manifest.value("step", int64_t{-1});
    for (const auto& file : manifest.at("files")) {
      ++out.num_files;
      out.bytes += file.at("bytes").get<uint64_t>();
    }
  });
  note_fault(out.faults, [&] {
    const io::ShardedState state = io::ShardedState::open(checkpoint / "state");
    out.world_size = state.index().world_size;
    out.strategy = state.index().strategy;
    out.num_tensors = static_cast<int64_t>(state.tensors().size());
    state.check_files();
  });
  note_fault(out.faults, [&] { io::open_weights(checkpoint); });
  note_fault(out.faults, [&] {
    const TrainerState state = trainer_state_from(checkpoint);
    LS_CHECK(out.step < 0 || state.step == out.step, CheckpointError,
             "state/trainer.json is of step {}, the manifest of step {}", state.step, out.step);
  });
  // A damaged file is often found twice, by its checksum and by its reader.
  std::vector<std::string> unique;
  for (std::string& fault : out.faults) {
    if (std::find(unique.begin(), unique.end(), fault) == unique.end()) {
      unique.push_back(std::move(fault));
    }
  }
  out.faults = std::move(unique);
  return out;
}

std::vector<fs::path> checkpoints_at(const fs::path& path) {
  LS_CHECK(fs::is_directory(path), CheckpointError, "{}: there is no such folder", path.string());
  if (fs::exists(path / "state") || fs::exists(path / "model.safetensors")) return {path};
  const CheckpointStore store(path);
  std::vector<fs::path> out;
  for (const int64_t step : store.steps()) out.push_back(store.folder_of(step));
  LS_CHECK(!out.empty(), CheckpointError,
           "{}: neither a checkpoint (it has no model.safetensors) nor a run with one (no folder "
           "checkpoints/step_N)",
           path.string());
  return out;
}

namespace {

// Tables of a checkpoint's weights file that are several parameters.
std::map<std::string, TableParts> stored_tables(const fs::path& state) {
  const fs::path file = state / "policy.safetensors";
  if (!fs::exists(file)) return {};
  io::NamedTensors tensors;
  for (auto& [name, tensor] : io::load_tensors(file)) tensors.emplace_back(name, tensor);
  return tables_of(tensors);
}

at::Tensor rows_of(const at::Tensor& table, const std::vector<int64_t>& rows) {
  std::vector<at::Tensor> out;
  for (const int64_t row : rows) {
    LS_CHECK(row >= 0 && row < table.size(0), CheckpointError, "a table of {} rows has no row {}",
             table.size(0), row);
    out.push_back(table.select(0, row));
  }
  return at::stack(out);
}

// What becomes of every tensor of the checkpoint's weights file.
std::vector<ExportTensor> consolidation_plan(const io::Weights& names,
                                             const io::ShardedState& state,
                                             const ConsolidateOptions& options) {
  std::string values = options.values;
  const bool has_average =
      std::any_of(state.tensors().begin(), state.tensors().end(),
                  [](const io::ShardedTensor& t) { return t.name.starts_with("ema."); });
  LS_CHECK(values != "ema" || has_average, CheckpointError,
           "{}: there is no moving average (the run had no optim.ema); use --values weights",
           state.path().string());
  if (values == "auto") values = has_average ? "ema" : "weights";
  std::vector<ExportTensor> plan;
  const std::map<std::string, TableParts> tables = stored_tables(state.path());
  for (const io::TensorInfo& info : names.tensors()) {
    ExportTensor t;
    t.spec = {info.name, info.dtype, info.shape};
    const auto find_source = [&](const std::string& parameter) -> std::string {
      for (const std::string& source : {values + "." + parameter, "param." + parameter}) {
        if (state.find(source) != nullptr) return source;
      }
      return {};
    };
    const auto table = tables.find(info.name);
    if (table == tables.end()) t.source = find_source(info.name);
    const at::ScalarType stored = io::to_scalar_type(info.dtype);
    const bool cast = options.dtype != "keep" && at::isFloatingType(stored);
    if (cast) t.spec.dtype = options.dtype == "fp32" ? io::DType::kF32 : io::DType::kBF16;
    if (t.source.empty()) {
      // A view of the mapped file, never written.
      t.literal = at::from_blob(const_cast<std::byte*>(names.data(info)), info.shape,
                                at::TensorOptions().dtype(stored));
    }
    if (table != tables.end()) {
      std::vector<ExportRows> parts;
      for (const auto& [parameter, rows] : table->second) {
        ExportRows& part = parts.emplace_back();
        part.rows = rows;
        part.part.source = find_source(parameter);
        if (part.part.source.empty()) part.part.literal = rows_of(t.literal, rows);
      }
      t.pieces = pieces_of(info.name, info.shape, parts);
    }
    plan.push_back(std::move(t));
  }
  return plan;
}

}  // namespace

void consolidate_checkpoint(const fs::path& checkpoint, const fs::path& out,
                            const ConsolidateOptions& options, const BytesProgress& progress) {
  require_fresh(out, "--out");
  const io::Weights names = io::open_weights(checkpoint);
  const io::ShardedState state = io::ShardedState::open(checkpoint / "state");
  state.check_files();
  const std::vector<ExportTensor> plan = consolidation_plan(names, state, options);
  Meter meter(bytes_of(plan), progress);
  const auto written = [&meter](uint64_t bytes) { meter.add(bytes); };
  if (out.extension() == ".safetensors") {
    write_model(out, plan, state, written);
    return;
  }
  AtomicFolder folder(out, ExitCode::kCheckpoint);
  write_model(folder.path() / "model.safetensors", plan, state, written);
  // What describes the model and its inputs; weights are those above.
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const std::string kind = entry.path().extension().string();
    if (!entry.is_regular_file() || (kind != ".json" && kind != ".yaml")) continue;
    if (entry.path().filename().string().starts_with("model.safetensors")) continue;
    copy_whole(entry.path(), folder.path() / entry.path().filename());
  }
  folder.commit();
}

namespace {

/// Elements of a tensor of the old state that go into one new file.
struct Part {
  const io::ShardedTensor* tensor = nullptr;
  int64_t begin = 0, end = 0;
};

// Even parts of all elements, one tensor after the other, as even_share() cuts them.
std::vector<std::vector<Part>> even_parts(const io::ShardedState& state, int64_t world_size) {
  int64_t total = 0;
  for (const io::ShardedTensor& t : state.tensors()) total += t.numel();
  std::vector<std::vector<Part>> out(static_cast<size_t>(world_size));
  int64_t place = 0, rank = 0;
  const auto end_of = [&](int64_t r) {
    return total / world_size * (r + 1) + total % world_size * (r + 1) / world_size;
  };
  for (const io::ShardedTensor& t : state.tensors()) {
    const int64_t numel = t.numel();
    if (numel == 0) out.front().push_back({&t, 0, 0});
    for (int64_t begin = 0; begin < numel;) {
      while (place >= end_of(rank)) ++rank;
      const int64_t count = std::min(numel - begin, end_of(rank) - place);
      out[static_cast<size_t>(rank)].push_back({&t, begin, begin + count});
      begin += count;
      place += count;
    }
  }
  return out;
}

WrittenFile write_parts(const fs::path& folder, int64_t rank, int64_t world_size,
                        const std::vector<Part>& parts, const io::ShardedState& state,
                        Meter& meter) {
  std::vector<io::TensorSpec> specs;
  std::vector<io::ShardRecord> records;
  for (const Part& p : parts) {
    const int64_t numel = p.tensor->numel();
    const std::string key = io::shard_key(p.tensor->name, p.begin, p.end, numel);
    const bool whole = p.begin == 0 && p.end == numel;
    specs.push_back(
        {key, p.tensor->dtype, whole ? p.tensor->shape : std::vector<int64_t>{p.end - p.begin}});
    records.push_back({key, p.tensor->name, p.begin, p.end, p.tensor->shape});
  }
  const std::string name = io::shard_file_name(rank, world_size);
  io::SafetensorsWriter writer(folder / "state" / name, std::move(specs),
                               io::shard_metadata(rank, world_size, records), /*with_sum=*/true);
  std::vector<std::byte> piece(kPieceBytes);
  for (const io::SafetensorsWriter::Ordered& entry : writer.order()) {
    const Part& p = parts[entry.position];
    const int64_t width = io::dtype_bytes(p.tensor->dtype);
    const int64_t step = static_cast<int64_t>(kPieceBytes) / width;
    for (int64_t begin = p.begin; begin < p.end; begin += step) {
      const int64_t end = std::min(p.end, begin + step);
      state.read(*p.tensor, begin, end, piece.data());
      writer.write(piece.data(), static_cast<size_t>((end - begin) * width));
      meter.add(static_cast<uint64_t>((end - begin) * width));
    }
  }
  return {"state/" + name, writer.commit()};
}

}  // namespace

void reshard_checkpoint(const fs::path& checkpoint, int64_t world_size, const fs::path& out,
                        const BytesProgress& progress) {
  LS_CHECK(world_size >= 1 && world_size <= 65536, ConfigError,
           "--world {}: expected 1 to 65536 ranks", world_size);
  require_fresh(out, "--out");
  const io::ShardedState state = io::ShardedState::open(checkpoint / "state");
  state.check_files();
  Meter meter(state.total_bytes(), progress);
  AtomicFolder folder(out, ExitCode::kCheckpoint);
  fs::create_directories(folder.path() / "state");
  std::vector<WrittenFile> written;
  const auto parts = even_parts(state, world_size);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    written.push_back(write_parts(folder.path(), rank, world_size, parts[static_cast<size_t>(rank)],
                                  state, meter));
  }
  written.push_back(write_shard_index(folder.path(), world_size, state.index().strategy));
  // Everything that is no part of the state's files stays as it is.
  std::vector<std::string> own = state.index().files;
  own.emplace_back(io::kShardIndexFile);
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
    const fs::path name = entry.path().lexically_relative(checkpoint);
    if (entry.is_directory()) {
      fs::create_directories(folder.path() / name);
      continue;
    }
    const bool replaced = name.parent_path() == "state" &&
                          std::find(own.begin(), own.end(), name.filename()) != own.end();
    if (!replaced && name != kManifestFile) copy_whole(entry.path(), folder.path() / name);
  }
  write_manifest(folder.path(), step_in_manifest(checkpoint), written);
  folder.commit();
}

}  // namespace longship::train
