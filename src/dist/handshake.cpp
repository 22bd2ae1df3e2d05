#include "dist/handshake.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "dist/process_group.h"

namespace longship::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr double kGrace = 5;   // what the others wait longer than rank 0
constexpr double kLinger = 3;  // how long rank 0 keeps the store for ranks that read a bad verdict
constexpr double kMismatch = 3;  // how long after a first difference others are still waited for

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string fact_key(int64_t rank) {
  return fmt::format("facts/{}", rank);
}

std::string this_process() {
  char host[256] = "?";
  gethostname(host, sizeof(host) - 1);
  return fmt::format("{} pid {}", host, getpid());
}

struct Peer {
  std::string where;
  std::map<std::string, std::string> facts;
};

std::string pack(const HandshakeOptions& options) {
  nlohmann::json out;
  out["where"] = this_process();
  out["facts"] = nlohmann::json::object();
  for (const auto& [what, value] : options.facts) out["facts"][what] = value;
  return out.dump();
}

Peer unpack(const std::string& text, int64_t rank) {
  Peer peer;
  const nlohmann::json in = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  LS_CHECK(in.is_object() && in.contains("facts") && in["facts"].is_object(), PeerError,
           "set-up: rank {} sent '{}', which is no greeting of this program", rank,
           printable(text));
  peer.where = in.value("where", "?");
  for (const auto& [what, value] : in["facts"].items()) {
    if (value.is_string()) peer.facts[what] = value.get<std::string>();
  }
  return peer;
}

// Rank 0's side.
class Chair {
 public:
  Chair(KeyStore& store, const HandshakeOptions& options) : store_(store), options_(options) {
    peers_.resize(static_cast<size_t>(options.world_size));
  }

  void preside() {
    const Clock::time_point begin = Clock::now();
    std::optional<double> until;  // set when a difference was seen
    std::string config, missing;
    while (true) {
      const bool all = collect();
      config = store_.has("duplicate") ? store_.get("duplicate") : differences();
      const double spent = seconds_since(begin);
      if (!config.empty() && !until) until = spent + kMismatch;
      if (all || (until && spent > *until)) break;
      if (spent > options_.timeout_s) {
        missing = describe_missing();
        break;
      }
      std::this_thread::sleep_for(kPoll);
    }
    if (config.empty() && missing.empty()) {
      store_.set("verdict", "ok");
      return;
    }
    const bool is_config = !config.empty();
    const std::string& message = is_config ? config : missing;
    store_.set("verdict", (is_config ? "config:" : "peer:") + message);
    linger();
    if (is_config) throw ConfigError(message);
    throw PeerError(message);
  }

 private:
  bool collect() {
    bool all = true;
    for (int64_t r = 0; r < options_.world_size; ++r) {
      std::optional<Peer>& peer = peers_[static_cast<size_t>(r)];
      if (!peer && store_.has(fact_key(r))) peer = unpack(store_.get(fact_key(r)), r);
      all = all && peer.has_value();
    }
    return all;
  }

  // "recipe: rank 0 has 'a', ranks 1-2 have 'b'; ..."; empty when everybody agrees so far.
  std::string differences() const {
    std::string out;
    for (const auto& [what, own] : options_.facts) {
      std::map<std::string, std::vector<int64_t>> by_value;
      for (int64_t r = 0; r < options_.world_size; ++r) {
        const std::optional<Peer>& peer = peers_[static_cast<size_t>(r)];
        if (!peer) continue;
        const auto found = peer->facts.find(what);
        by_value[found == peer->facts.end() ? "nothing" : found->second].push_back(r);
      }
      if (by_value.size() < 2) continue;
      std::string text;
      // Rank 0's value first, then the others.
      for (const bool chair : {true, false}) {
        for (const auto& [value, ranks] : by_value) {
          if ((value == own) != chair) continue;
          const std::string& where = peers_[static_cast<size_t>(ranks.front())]->where;
          text += fmt::format("{}{} ({}) {} '{}'", text.empty() ? "" : ", ", describe_ranks(ranks),
                              where, ranks.size() == 1 ? "has" : "have", printable(value, 200));
        }
      }
      out += fmt::format("{}{}: {}", out.empty() ? "" : "; ", what, text);
    }
    if (out.empty()) return out;
    return "the ranks do not run the same thing: " + out +
           "; start all of them with the same program, recipe, data and launcher settings";
  }

  std::string describe_missing() const {
    std::vector<int64_t> missing;
    for (int64_t r = 0; r < options_.world_size; ++r) {
      if (!peers_[static_cast<size_t>(r)]) missing.push_back(r);
    }
    return fmt::format("{} of {} did not come within {:g} s{}{}", describe_ranks(missing),
                       options_.world_size, options_.timeout_s, options_.note.empty() ? "" : "; ",
                       options_.note);
  }

  // Whoever came reads the verdict before the store goes away with this process.
  void linger() {
    int64_t present = 0;
    for (const auto& peer : peers_) present += peer ? 1 : 0;
    const Clock::time_point begin = Clock::now();
    while (seconds_since(begin) < kLinger && store_.add("read", 0) < present - 1) {
      std::this_thread::sleep_for(kPoll);
    }
  }

  KeyStore& store_;
  const HandshakeOptions& options_;
  std::vector<std::optional<Peer>> peers_;
};

void await_verdict(KeyStore& store, const HandshakeOptions& options) {
  const Clock::time_point begin = Clock::now();
  std::string verdict;
  try {
    while (!store.has("verdict")) {
      LS_CHECK(seconds_since(begin) < options.timeout_s + kGrace, PeerError,
               "rank {}: rank 0 gave no verdict on the set-up within {:g} s; is it still running?",
               options.rank, options.timeout_s + kGrace);
      std::this_thread::sleep_for(kPoll);
    }
    verdict = store.get("verdict");
    store.add("read", 1);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    LS_CHECK(!verdict.empty(), PeerError,
             "rank {}: rank 0 went away during the set-up (the store does not answer: {})",
             options.rank, text.substr(0, text.find('\n')));
  }
  if (verdict == "ok") return;
  const size_t colon = verdict.find(':');
  const std::string message = verdict.substr(colon + 1);
  if (verdict.starts_with("config:")) throw ConfigError(message);
  throw PeerError(message);
}

}  // namespace

void shake_hands(KeyStore& store, const HandshakeOptions& options) {
  const std::string where = this_process();
  const std::string claim = fmt::format("claim/{}", options.rank);
  if (store.add(claim, 1) > 1) {
    const std::string first = store.has(fact_key(options.rank))
                                  ? unpack(store.get(fact_key(options.rank)), options.rank).where
                                  : "another process";
    const std::string message =
        fmt::format("two processes are rank {}: {} and {}; give every process its own rank",
                    options.rank, first, where);
    store.set("duplicate", message);
    throw ConfigError(message);
  }
  store.set(fact_key(options.rank), pack(options));
  if (options.rank == 0) {
    Chair(store, options).preside();
  } else {
    await_verdict(store, options);
  }
}

}  // namespace longship::dist
