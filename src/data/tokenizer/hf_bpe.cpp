#include "data/tokenizer/hf_bpe.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr size_t kMaxCachedBytes = 256;
constexpr size_t kShards = 32, kWordsPerShard = 1024;

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t spread(uint64_t pair) {
  return (pair * 0x9E3779B97F4A7C15ULL) >> 20;
}

}  // namespace

struct BpeModel::Symbol {
  int32_t id = 0;
  int32_t previous = -1, next = -1;
  uint32_t length = 0;  // bytes of the word; 0 once it is merged into another
};

struct BpeModel::Candidate {
  uint32_t rank = 0;
  uint32_t position = 0;
  int32_t id = 0;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

/// Tokens of words. A shard that another thread holds counts as a miss.
class BpeModel::Cache {
 public:
  bool find(std::string_view word, std::vector<Token>& tokens) {
    Shard& shard = shard_of(word);
    const std::unique_lock lock(shard.mutex, std::try_to_lock);
    if (!lock) return false;
    const auto found = shard.words.find(word);
    if (found == shard.words.end()) return false;
    tokens.insert(tokens.end(), found->second.begin(), found->second.end());
    return true;
  }

  void insert(std::string_view word, const Token* begin, const Token* end) {
    Shard& shard = shard_of(word);
    const std::unique_lock lock(shard.mutex, std::try_to_lock);
    if (!lock) return;
    if (shard.words.size() < kWordsPerShard) {
      shard.words.try_emplace(std::string(word), begin, end);
    }
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<Token>, TextHash, std::equal_to<>> words;
  };

  Shard& shard_of(std::string_view word) { return shards_[(TextHash{}(word) >> 40) % kShards]; }

  std::array<Shard, kShards> shards_;
};

BpeModel::BpeModel() : cache_(std::make_unique<Cache>()) {}
BpeModel::~BpeModel() = default;

std::unique_ptr<const BpeModel> BpeModel::parse(const JsonField& field) {
  // Old files name no type.
  if (const auto type = field.find("type"); type && type->as_string(kMaxTokenBytes) != "BPE") {
    type->fail(fmt::format("the model \"{}\" is not supported; known is BPE",
                           printable(type->as_string(kMaxTokenBytes))));
  }
  std::unique_ptr<BpeModel> model(new BpeModel());
  model->place_ = field.file() + ": " + field.key();
  model->parse_options(field);
  model->parse_vocabulary(field.at("vocab"));
  model->parse_merges(field.at("merges"));
  return model;
}

void BpeModel::parse_options(const JsonField& field) {
  if (const auto dropout = field.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0) {
      dropout->fail("merges that are dropped at random are not supported; set it to null");
    }
  }
  if (const auto prefix = field.find("continuing_subword_prefix")) {
    prefix_ = prefix->as_string(kMaxTokenBytes);
  }
  if (const auto suffix = field.find("end_of_word_suffix")) {
    suffix_ = suffix->as_string(kMaxTokenBytes);
  }
  if (const auto unknown = field.find("unk_token")) {
    unknown_ = unknown->as_string(kMaxTokenBytes);
  }
  byte_fallback_ = field.bool_or("byte_fallback", false);
  fuse_unknown_ = field.bool_or("fuse_unk", false);
  ignore_merges_ = field.bool_or("ignore_merges", false);
}

void BpeModel::parse_vocabulary(const JsonField& field) {
  const nlohmann::json& entries = field.value();
  if (!entries.is_object()) field.fail("expected an object of tokens and their ids");
  if (entries.size() > static_cast<size_t>(kMaxTokens)) {
    field.fail(fmt::format("{} tokens, at most {} are read", entries.size(), kMaxTokens));
  }
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    const std::string& token = entry.key();
    const auto place = [&] {
      return JsonField(entry.value(), field.file(),
                       fmt::format("{}[\"{}\"]", field.key(), printable(token, 40)));
    };
    if (token.size() > kMaxTokenBytes) {
      place().fail(
          fmt::format("a token of {} bytes, at most {} are read", token.size(), kMaxTokenBytes));
    }
    const bool plain = entry->is_number_unsigned() && entry->get<uint64_t>() < kMaxTokens;
    const auto id =
        static_cast<size_t>(plain ? entry->get<int64_t>() : place().as_integer(0, kMaxTokens - 1));
    if (id >= tokens_.size()) {
      tokens_.resize(id + 1);
      used_.resize(id + 1);
    }
    if (used_[id]) {
      place().fail(fmt::format("id {} is that of \"{}\" too", id, printable(tokens_[id], 40)));
    }
    tokens_[id] = token;
    used_[id] = true;
    ++num_tokens_;
  }
  ids_.reserve(entries.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (used_[id]) ids_.emplace(tokens_[id], static_cast<int32_t>(id));
  }
  if (unknown_) unknown_id_ = find(*unknown_).value_or(-1);
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  short_ids_.assign(0x800, -1);
  for (char32_t c = 0; c < 0x800; ++c) {
    std::string text;
    append_utf8(text, c);
    short_ids_[c] = find(text).value_or(-1);
  }
}

/// The two tokens of an entry of "merges"; none for a line that tells the version.
std::optional<std::pair<std::string_view, std::string_view>> BpeModel::merge_parts(
    const JsonField& list, size_t index) {
  const nlohmann::json& entry = list.value()[index];
  const auto refuse = [&](const std::string& why) {
    JsonField(entry, list.file(), fmt::format("{}[{}]", list.key(), index)).fail(why);
  };
  if (entry.is_array()) {
    if (entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) {
      refuse("expected two tokens");
    }
    return std::pair<std::string_view, std::string_view>(entry[0].get_ref<const std::string&>(),
                                                         entry[1].get_ref<const std::string&>());
  }
  if (!entry.is_string()) refuse("expected two tokens, as a list or with a space between them");
  const std::string_view line = entry.get_ref<const std::string&>();
  if (line.substr(0, 8) == "#version") return std::nullopt;
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    refuse(fmt::format("expected two tokens with a space between them, found \"{}\"",
                       printable(line, 60)));
  }
  return std::pair(line.substr(0, space), line.substr(space + 1));
}

void BpeModel::parse_merges(const JsonField& field) {
  const nlohmann::json& entries = field.value();
  if (!entries.is_array()) field.fail("expected an array of merges");
  if (entries.size() > static_cast<size_t>(kMaxMerges)) {
    field.fail(fmt::format("{} merges, at most {} are read", entries.size(), kMaxMerges));
  }
  size_t slots = 16;
  while (slots < entries.size() * 2) slots *= 2;
  merges_.assign(slots, Merge{0, 0, -1});
  uint32_t rank = 0;
  std::string merged;
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto parts = merge_parts(field, i);
    if (!parts) continue;
    const auto refuse = [&](const std::string& why) {
      JsonField(entries[i], field.file(), fmt::format("{}[{}]", field.key(), i)).fail(why);
    };
    const auto id_of = [&](std::string_view token) {
      const auto id = find(token);
      if (!id) {
        refuse(fmt::format("the token \"{}\" is not in the vocabulary", printable(token, 60)));
      }
      return *id;
    };
    const std::string_view right = parts->second;
    const int32_t left_id = id_of(parts->first), right_id = id_of(right);
    if (right.size() < prefix_.size()) {
      refuse(fmt::format("the token \"{}\" lacks the prefix \"{}\"", printable(right, 60),
                         printable(prefix_, 60)));
    }
    merged.assign(parts->first);
    merged += right.substr(prefix_.size());
    insert_merge({pair_of(left_id, right_id), rank++, id_of(merged)});
  }
}

void BpeModel::insert_merge(const Merge& merge) {
  size_t slot = spread(merge.pair) & (merges_.size() - 1);
  while (merges_[slot].id >= 0 && merges_[slot].pair != merge.pair) {
    slot = (slot + 1) & (merges_.size() - 1);
  }
  merges_[slot] = merge;  // of two for the same pair the last one counts
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t slot = spread(pair) & (merges_.size() - 1); merges_[slot].id >= 0;
       slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].pair == pair) return &merges_[slot];
  }
  return nullptr;
}

std::optional<int32_t> BpeModel::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* BpeModel::token(int64_t id) const {
  if (id < 0 || id >= id_bound() || !used_[static_cast<size_t>(id)]) return nullptr;
  return &tokens_[static_cast<size_t>(id)];
}

/// The id of one character of a word, or -1. `written` becomes what was looked up.
int32_t BpeModel::find_symbol(std::string_view character, bool is_first, bool is_last,
                              std::string& written) const {
  const bool prefixed = !is_first && !prefix_.empty(), suffixed = is_last && !suffix_.empty();
  if (!prefixed && !suffixed && character.size() <= 2) {
    const int32_t id = short_ids_[code_point_at(character, 0).value];
    if (id < 0) written.assign(character);
    return id;
  }
  written.clear();
  if (prefixed) written += prefix_;
  written += character;
  if (suffixed) written += suffix_;
  return find(written).value_or(-1);
}

bool BpeModel::add_bytes(std::string_view text, std::vector<Symbol>& symbols) const {
  for (const char byte : text) {
    if (byte_ids_[static_cast<uint8_t>(byte)] < 0) return false;
  }
  for (const char byte : text)
    symbols.push_back({byte_ids_[static_cast<uint8_t>(byte)], -1, -1, 1});
  return true;
}

/// The characters of a word. Those that no token has become bytes, or the unknown token, or
/// nothing.
void BpeModel::begin_word(std::string_view word, std::vector<Symbol>& symbols) const {
  uint32_t unknown_length = 0;  // of an unknown token that is not added yet
  const auto add_unknown = [&] {
    if (unknown_length > 0) symbols.push_back({unknown_id_, -1, -1, unknown_length});
    unknown_length = 0;
  };
  std::string written;
  for (size_t pos = 0; pos < word.size();) {
    const uint32_t length = code_point_at(word, pos).num_bytes;
    const bool is_first = pos == 0, is_last = pos + length == word.size();
    const int32_t id = find_symbol(word.substr(pos, length), is_first, is_last, written);
    pos += length;
    if (id >= 0) {
      add_unknown();
      symbols.push_back({id, -1, -1, length});
      continue;
    }
    // Bytes go before an unknown token that waits: so does the library.
    if (byte_fallback_ && add_bytes(written, symbols)) continue;
    if (!unknown_) continue;
    LS_CHECK(unknown_id_ >= 0, DataError,
             "{}: the text needs the unknown token \"{}\", which the vocabulary lacks", place_,
             printable(*unknown_, 60));
    if (!fuse_unknown_) add_unknown();
    unknown_length += length;
  }
  add_unknown();
}

/// Merges neighbours in the order of rank, then of position.
void BpeModel::merge_symbols(std::vector<Symbol>& symbols) const {
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Candidate> heap;
  const auto add = [&](int32_t left, int32_t right) {
    const Merge* merge =
        find_merge(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, static_cast<uint32_t>(left), merge->id});
  };
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].previous = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
    if (i > 0) add(i - 1, i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>{});
  const auto add_later = [&](int32_t left, int32_t right) {
    const size_t before = heap.size();
    add(left, right);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), std::greater<>{});
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    const Candidate top = heap.back();
    heap.pop_back();
    const auto position = static_cast<int32_t>(top.position);
    Symbol& left = symbols[top.position];
    if (left.length == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->id != top.id) continue;  // made of symbols that are gone
    left.id = top.id;
    left.length += right.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = position;
    if (left.previous >= 0) add_later(left.previous, position);
    if (left.next >= 0) add_later(position, left.next);
  }
}

void BpeModel::encode(std::string_view word, std::vector<Token>& tokens) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (const auto id = find(word)) {
      tokens.push_back({*id, 0, static_cast<uint32_t>(word.size())});
      return;
    }
  }
  const bool cached = word.size() <= kMaxCachedBytes;
  if (cached && cache_->find(word, tokens)) return;
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  begin_word(word, symbols);
  merge_symbols(symbols);
  const size_t first = tokens.size();
  uint32_t begin = 0;
  for (const Symbol& symbol : symbols) {
    if (symbol.length == 0) continue;
    tokens.push_back({symbol.id, begin, begin + symbol.length});
    begin += symbol.length;
  }
  if (cached) cache_->insert(word, tokens.data() + first, tokens.data() + tokens.size());
}

}  // namespace longship::data::hf
