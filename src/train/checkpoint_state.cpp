#include "train/checkpoint_state.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/fs.h"
#include "base/sha256.h"
#include "base/strings.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  return numel;
}

uint64_t bytes_of(const io::TensorSpec& spec) {
  return static_cast<uint64_t>(numel_of(spec.shape)) *
         static_cast<uint64_t>(io::dtype_bytes(spec.dtype));
}

std::string describe(const std::vector<int64_t>& shape, io::DType dtype) {
  return fmt::format("[{}] {}", fmt::join(shape, ", "), io::dtype_name(dtype));
}

/// Adjacent slices of one tensor, written under one key.
struct Run {
  const StateSlice* first = nullptr;
  std::vector<const StateSlice*> parts;
  int64_t end = 0;
};

std::vector<Run> joined(std::span<const StateSlice> slices) {
  std::vector<const StateSlice*> sorted;
  for (const StateSlice& s : slices) {
    const int64_t numel = numel_of(s.shape);
    LS_CHECK(s.tensor.defined() && s.tensor.is_contiguous() && 0 <= s.begin && s.begin <= s.end &&
                 s.end <= numel && s.tensor.numel() == s.end - s.begin,
             InternalError, "state slice '{}' [{}, {}) of [{}] does not fit its tensor", s.name,
             s.begin, s.end, fmt::join(s.shape, ", "));
    if (s.begin < s.end || numel == 0) sorted.push_back(&s);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const StateSlice* a, const StateSlice* b) {
    return std::tie(a->name, a->begin) < std::tie(b->name, b->begin);
  });
  std::vector<Run> runs;
  for (const StateSlice* s : sorted) {
    const bool same = !runs.empty() && runs.back().first->name == s->name;
    if (same) {
      const StateSlice& first = *runs.back().first;
      LS_CHECK(s->begin >= runs.back().end && s->begin < s->end && first.shape == s->shape &&
                   first.tensor.scalar_type() == s->tensor.scalar_type(),
               InternalError, "state slices of '{}' overlap or differ in shape or dtype at {}",
               s->name, s->begin);
    }
    if (!same || s->begin != runs.back().end) runs.push_back({s, {}, s->begin});
    runs.back().parts.push_back(s);
    runs.back().end = s->end;
  }
  return runs;
}

/// Hands the bytes of a contiguous tensor on any device to `sink` in pieces.
template <class Sink>
void for_pieces(const at::Tensor& tensor, const Sink& sink) {
  if (tensor.numel() == 0) return;
  const auto width = static_cast<size_t>(tensor.element_size());
  if (tensor.device().is_cpu()) {
    sink(tensor.const_data_ptr(), static_cast<size_t>(tensor.numel()) * width);
    return;
  }
  const at::Tensor flat = tensor.detach().view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, flat.numel() - begin);
    const at::Tensor piece = flat.narrow(0, begin, count).to(at::kCPU);
    sink(piece.const_data_ptr(), static_cast<size_t>(count) * width);
  }
}

}  // namespace

std::vector<StateSlice> whole_slices(
    const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<StateSlice> out;
  for (const auto& [name, tensor] : tensors) {
    out.push_back({name, 0, tensor.numel(), tensor.sizes().vec(), tensor.detach()});
  }
  return out;
}

std::vector<StateSlice> even_share(std::span<const StateSlice> all, int64_t rank,
                                   int64_t world_size) {
  int64_t total = 0;
  for (const StateSlice& s : all) total += s.end - s.begin;
  // Not total * rank / world_size, which could overflow.
  const auto boundary = [&](int64_t r) {
    return total / world_size * r + total % world_size * r / world_size;
  };
  const int64_t from = boundary(rank), to = boundary(rank + 1);
  std::vector<StateSlice> out;
  int64_t place = 0;  // of the slice's first element among all
  for (const StateSlice& s : all) {
    const int64_t begin = std::max(from - place, int64_t{0}),
                  end = std::min(to - place, s.end - s.begin);
    if (s.begin == s.end ? rank == 0 : begin < end) {
      const bool empty = s.begin == s.end;
      out.push_back({s.name, s.begin + (empty ? 0 : begin), empty ? s.end : s.begin + end, s.shape,
                     empty ? s.tensor : s.tensor.view({-1}).narrow(0, begin, end - begin)});
    }
    place += s.end - s.begin;
  }
  return out;
}

uint64_t bytes_of(std::span<const StateSlice> slices) {
  uint64_t bytes = 0;
  for (const StateSlice& s : slices) {
    bytes += static_cast<uint64_t>(s.tensor.numel()) * s.tensor.element_size();
  }
  return bytes;
}

uint64_t bytes_of(std::span<const ExportTensor> tensors) {
  uint64_t bytes = 0;
  for (const ExportTensor& t : tensors) bytes += bytes_of(t.spec);
  return bytes;
}

WrittenFile write_shard(const fs::path& checkpoint, int64_t rank, int64_t world_size,
                        std::span<const StateSlice> slices) {
  const std::vector<Run> runs = joined(slices);
  std::vector<io::TensorSpec> specs;
  std::vector<io::ShardRecord> records;
  for (const Run& run : runs) {
    const StateSlice& first = *run.first;
    const int64_t numel = numel_of(first.shape);
    const bool whole = first.begin == 0 && run.end == numel;
    const std::string key = io::shard_key(first.name, first.begin, run.end, numel);
    specs.push_back({key, io::to_dtype(first.tensor.scalar_type()),
                     whole ? first.shape : std::vector<int64_t>{run.end - first.begin}});
    records.push_back({key, first.name, first.begin, run.end, first.shape});
  }
  const std::string name = io::shard_file_name(rank, world_size);
  io::SafetensorsWriter writer(checkpoint / "state" / name, std::move(specs),
                               io::shard_metadata(rank, world_size, records), /*with_sum=*/true);
  for (const io::SafetensorsWriter::Ordered& entry : writer.order()) {
    for (const StateSlice* part : runs[entry.position].parts) {
      for_pieces(part->tensor, [&](const void* data, size_t bytes) { writer.write(data, bytes); });
    }
  }
  return {"state/" + name, writer.commit()};
}

WrittenFile write_shard_index(const fs::path& checkpoint, int64_t world_size,
                              const std::string& strategy) {
  const std::string text =
      io::to_json(io::index_of_shards(checkpoint / "state", world_size, strategy));
  write_file_atomic(checkpoint / "state" / io::kShardIndexFile, text, ExitCode::kCheckpoint);
  return {std::string("state/") + io::kShardIndexFile, {text.size(), sha256_hex(text)}};
}

void check_state(const io::ShardedState& state, std::span<const io::TensorSpec> expected) {
  std::vector<std::string> faults;
  std::set<std::string_view> known;
  for (const io::TensorSpec& spec : expected) {
    known.insert(spec.name);
    const io::ShardedTensor* found = state.find(spec.name);
    if (found == nullptr) {
      faults.push_back(fmt::format("missing {} {}", spec.name, describe(spec.shape, spec.dtype)));
    } else if (found->shape != spec.shape || found->dtype != spec.dtype) {
      faults.push_back(fmt::format("wrong shape or type of {}: {} in the checkpoint, {} expected",
                                   spec.name, describe(found->shape, found->dtype),
                                   describe(spec.shape, spec.dtype)));
    }
  }
  for (const io::ShardedTensor& tensor : state.tensors()) {
    if (!known.contains(tensor.name) && !tensor.name.starts_with("param.")) {
      faults.push_back(fmt::format("unexpected {} {}", printable(tensor.name, 200),
                                   describe(tensor.shape, tensor.dtype)));
    }
  }
  LS_CHECK(faults.empty(), CheckpointError, "{}: the optimizer state does not fit the model: {}",
           state.path().string(), fmt::join(faults, "; "));
}

void load_slices(const io::ShardedState& state, std::span<const StateSlice> slices) {
  for (const StateSlice& s : slices) {
    const io::ShardedTensor& source = state.at(s.name);
    LS_CHECK(source.shape == s.shape && source.dtype == io::to_dtype(s.tensor.scalar_type()),
             CheckpointError, "{}: tensor '{}' is {}, expected {}", state.path().string(), s.name,
             describe(source.shape, source.dtype),
             describe(s.shape, io::to_dtype(s.tensor.scalar_type())));
    LS_CHECK(s.tensor.is_contiguous() && s.tensor.numel() == s.end - s.begin, InternalError,
             "state slice '{}' [{}, {}) does not fit its tensor", s.name, s.begin, s.end);
    if (s.begin == s.end) continue;
    if (s.tensor.device().is_cpu()) {
      state.read(source, s.begin, s.end, s.tensor.mutable_data_ptr());
      continue;
    }
    const at::Tensor flat = s.tensor.detach().view({-1});
    for (int64_t begin = 0; begin < flat.numel(); begin += kPieceElements) {
      const int64_t count = std::min(kPieceElements, flat.numel() - begin);
      const at::Tensor piece = at::empty({count}, flat.options().device(at::kCPU));
      state.read(source, s.begin + begin, s.begin + begin + count, piece.mutable_data_ptr());
      flat.narrow(0, begin, count).copy_(piece);
    }
  }
}

namespace {

// Elements [first, last) of the state, cast.
template <class Sink>
void stream_cast(const io::ShardedState& state, const io::ShardedTensor& source, int64_t first,
                 int64_t last, io::DType dtype, const Sink& sink) {
  const at::ScalarType from = io::to_scalar_type(source.dtype), to = io::to_scalar_type(dtype);
  at::Tensor buffer =
      at::empty({std::min(kPieceElements, last - first)}, at::TensorOptions().dtype(from));
  for (int64_t begin = first; begin < last; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, last - begin);
    state.read(source, begin, begin + count, buffer.mutable_data_ptr());
    const at::Tensor piece = buffer.narrow(0, 0, count).to(to);
    sink(piece.const_data_ptr(), static_cast<size_t>(count) * piece.element_size());
  }
}

// A contiguous tensor on any device, cast.
template <class Sink>
void cast_pieces(const at::Tensor& tensor, at::ScalarType to, const Sink& sink) {
  if (tensor.scalar_type() == to) return for_pieces(tensor, sink);
  const at::Tensor flat = tensor.view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, flat.numel() - begin);
    for_pieces(flat.narrow(0, begin, count).to(to), sink);
  }
}

// The pieces must be all of the tensor, and lie in what they are of.
void check_pieces(const ExportTensor& t, const io::ShardedState& state) {
  int64_t covered = 0;
  for (const ExportPiece& piece : t.pieces) {
    const int64_t numel =
        piece.source.empty() ? piece.literal.numel() : state.at(piece.source).numel();
    LS_CHECK(0 <= piece.begin && piece.begin < piece.end && piece.end <= numel, CheckpointError,
             "{}: elements [{}, {}) of '{}' are no part of '{}', which has {}",
             state.path().string(), piece.begin, piece.end, t.spec.name, piece.source, numel);
    covered += piece.end - piece.begin;
  }
  LS_CHECK(covered == numel_of(t.spec.shape), CheckpointError,
           "{}: '{}' of [{}] is put together from {} elements", state.path().string(), t.spec.name,
           fmt::join(t.spec.shape, ", "), covered);
}

}  // namespace

std::vector<ExportPiece> pieces_of(const std::string& name, const std::vector<int64_t>& shape,
                                   std::span<const ExportRows> parts) {
  LS_CHECK(!shape.empty() && shape[0] > 0, CheckpointError, "'{}' has no rows", name);
  std::vector<ExportPiece> out(static_cast<size_t>(shape[0]));
  const int64_t width = numel_of(shape) / shape[0];
  for (const ExportRows& part : parts) {
    for (size_t i = 0; i < part.rows.size(); ++i) {
      const int64_t row = part.rows[i], begin = static_cast<int64_t>(i) * width;
      LS_CHECK(row >= 0 && row < shape[0] && out[static_cast<size_t>(row)].end == 0,
               CheckpointError, "'{}': row {} does not exist, or is in two parts", name, row);
      out[static_cast<size_t>(row)] = {part.part.source, part.part.literal, begin, begin + width};
    }
  }
  std::vector<ExportPiece> joined;
  for (ExportPiece& piece : out) {
    LS_CHECK(piece.end > 0 || width == 0, CheckpointError, "'{}': row {} is in no part", name,
             &piece - out.data());
    ExportPiece* last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && last->source == piece.source && last->literal.is_same(piece.literal) &&
        last->end == piece.begin) {
      last->end = piece.end;
    } else {
      joined.push_back(std::move(piece));
    }
  }
  return joined;
}

std::map<std::string, TableParts> tables_of(
    std::span<const std::pair<std::string, at::Tensor>> policy_state) {
  constexpr std::string_view kRows = "rows.";
  std::map<std::string, TableParts> out;
  for (const auto& [name, rows] : policy_state) {
    if (!name.starts_with(kRows)) continue;
    LS_CHECK(rows.scalar_type() == at::kLong && rows.dim() == 1, CheckpointError,
             "the training state '{}' holds no row numbers", printable(name));
    const std::string parameter = name.substr(kRows.size());
    const at::Tensor host = rows.to(at::kCPU).contiguous();
    const int64_t* begin = host.const_data_ptr<int64_t>();
    out[parameter.substr(0, parameter.find('#'))].emplace_back(
        parameter, std::vector<int64_t>(begin, begin + host.numel()));
  }
  return out;
}

io::FileSum write_model(const fs::path& file, std::span<const ExportTensor> tensors,
                        const io::ShardedState& state,
                        const std::function<void(uint64_t num_bytes)>& written) {
  std::vector<io::TensorSpec> specs;
  for (const ExportTensor& t : tensors) {
    specs.push_back(t.spec);
    if (!t.pieces.empty()) {
      check_pieces(t, state);
    } else if (!t.source.empty()) {
      LS_CHECK(state.at(t.source).shape == t.spec.shape, CheckpointError,
               "{}: tensor '{}' is [{}], '{}' of {} needs [{}]", state.path().string(), t.source,
               fmt::join(state.at(t.source).shape, ", "), t.spec.name, file.string(),
               fmt::join(t.spec.shape, ", "));
    }
  }
  io::SafetensorsWriter writer(file, std::move(specs), {{"format", "pt"}}, /*with_sum=*/true);
  const auto sink = [&](const void* data, size_t bytes) {
    writer.write(data, bytes);
    if (written) written(bytes);
  };
  for (const io::SafetensorsWriter::Ordered& entry : writer.order()) {
    const ExportTensor& t = tensors[entry.position];
    std::vector<ExportPiece> pieces = t.pieces;
    if (pieces.empty()) {
      const int64_t numel = numel_of(t.spec.shape);
      pieces.push_back(
          {t.source, t.source.empty() ? t.literal.detach().contiguous() : t.literal, 0, numel});
    }
    for (const ExportPiece& piece : pieces) {
      if (piece.source.empty()) {
        const at::Tensor flat = piece.literal.detach().view({-1});
        cast_pieces(flat.narrow(0, piece.begin, piece.end - piece.begin),
                    io::to_scalar_type(t.spec.dtype), sink);
      } else {
        stream_cast(state, state.at(piece.source), piece.begin, piece.end, t.spec.dtype, sink);
      }
    }
  }
  return writer.commit();
}

}  // namespace longship::train
