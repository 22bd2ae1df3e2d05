#include "runtime/trace_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace longship::runtime {
namespace {

constexpr double kNsPerMs = 1e6;
constexpr double kNsPerUs = 1e3;

std::vector<const DeviceEvent*> by_start(std::span<const DeviceEvent> events) {
  std::vector<const DeviceEvent*> order;
  order.reserve(events.size());
  for (const DeviceEvent& event : events) order.push_back(&event);
  std::stable_sort(order.begin(), order.end(), [](const DeviceEvent* a, const DeviceEvent* b) {
    return a->start_ns < b->start_ns;
  });
  return order;
}

/// Walks the union of all events between the first and the last boundary.
class BusyWalk {
 public:
  BusyWalk(std::span<const int64_t> boundaries, const TraceSummaryOptions& options)
      : boundaries_(boundaries),
        options_(options),
        busy_end_(boundaries.front()),
        busy_ns_(boundaries.size() - 1, 0) {}

  /// Events come in the order of their start.
  void add(const DeviceEvent& event) {
    const int64_t start = std::max(event.start_ns, boundaries_.front());
    const int64_t end = std::min(event.end_ns(), boundaries_.back());
    if (end <= start) return;
    if (start > busy_end_) close_gap(start, event.name);
    if (end > busy_end_) {
      add_busy(std::max(start, busy_end_), end);
      busy_end_ = end;
      last_name_ = event.name;
    }
  }

  void finish() {
    if (boundaries_.back() > busy_end_) close_gap(boundaries_.back(), "(end)");
  }

  const std::vector<int64_t>& busy_ns() const { return busy_ns_; }
  const std::vector<IdleGap>& gaps() const { return gaps_; }

 private:
  void close_gap(int64_t until, const std::string& next) {
    const double us = static_cast<double>(until - busy_end_) / kNsPerUs;
    if (us < options_.min_gap_us) return;
    const double at_ms = static_cast<double>(busy_end_ - boundaries_.front()) / kNsPerMs;
    gaps_.push_back({us, at_ms, last_name_, next});
  }

  void add_busy(int64_t start, int64_t end) {
    while (step_ + 2 < boundaries_.size() && start >= boundaries_[step_ + 1]) ++step_;
    for (size_t step = step_; step + 1 < boundaries_.size() && start < end; ++step) {
      const int64_t part = std::min(end, boundaries_[step + 1]);
      if (part > start) busy_ns_[step] += part - start;
      start = std::max(start, part);
    }
  }

  std::span<const int64_t> boundaries_;
  const TraceSummaryOptions& options_;
  int64_t busy_end_;
  size_t step_ = 0;
  std::vector<int64_t> busy_ns_;
  std::vector<IdleGap> gaps_;
  std::string last_name_ = "(begin)";
};

struct Total {
  int64_t count = 0;
  int64_t ns = 0;
  KernelCategory category = KernelCategory::kOther;
};

void fill_busy(std::span<const DeviceEvent* const> order, std::span<const int64_t> boundaries,
               TraceSummary& summary) {
  BusyWalk walk(boundaries, summary.options);
  for (const DeviceEvent* event : order) walk.add(*event);
  walk.finish();
  const auto steps = static_cast<double>(summary.num_steps);
  std::vector<double> step_ms, busy_ms;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    step_ms.push_back(static_cast<double>(boundaries[i + 1] - boundaries[i]) / kNsPerMs);
    busy_ms.push_back(static_cast<double>(walk.busy_ns()[i]) / kNsPerMs);
  }
  summary.step_ms = percentiles(step_ms);
  summary.busy_step_ms = percentiles(busy_ms);
  summary.window_ms = summary.step_ms.mean;
  summary.busy_ms = summary.busy_step_ms.mean;
  summary.busy_fraction = summary.window_ms > 0 ? summary.busy_ms / summary.window_ms : 0;
  summary.idle_us = (summary.window_ms - summary.busy_ms) * 1e3;
  std::vector<IdleGap> gaps = walk.gaps();
  summary.gap_count = static_cast<double>(gaps.size()) / steps;
  for (const IdleGap& gap : gaps) summary.gap_us += gap.us / steps;
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const IdleGap& a, const IdleGap& b) { return a.us > b.us; });
  gaps.resize(std::min(gaps.size(), static_cast<size_t>(summary.options.num_largest_gaps)));
  summary.largest_gaps = std::move(gaps);
}

// Milliseconds in which one of the events ran.
double union_ms(std::span<const DeviceEvent* const> order, std::span<const int64_t> boundaries,
                const TraceSummaryOptions& options,
                const std::function<bool(const DeviceEvent&)>& counts) {
  BusyWalk walk(boundaries, options);
  for (const DeviceEvent* event : order) {
    if (counts(*event)) walk.add(*event);
  }
  double ns = 0;
  for (const int64_t step : walk.busy_ns()) ns += static_cast<double>(step);
  return ns / kNsPerMs;
}

void fill_communication(std::span<const DeviceEvent* const> order,
                        std::span<const int64_t> boundaries, TraceSummary& summary) {
  const auto communicates = [](const DeviceEvent& event) {
    return categorise(event) == KernelCategory::kCommunication;
  };
  if (std::none_of(order.begin(), order.end(),
                   [&](const DeviceEvent* e) { return communicates(*e); })) {
    return;
  }
  const auto steps = static_cast<double>(summary.num_steps);
  summary.communication_ms = union_ms(order, boundaries, summary.options, communicates) / steps;
  const double others = union_ms(order, boundaries, summary.options,
                                 [&](const DeviceEvent& event) { return !communicates(event); });
  summary.exposed_ms = summary.busy_ms - others / steps;
}

void fill_counts(std::span<const DeviceEvent* const> events, TraceSummary& summary) {
  std::set<uint64_t> launches;
  for (const DeviceEvent* event : events) {
    double& count = event->kind == DeviceEventKind::kKernel   ? summary.kernels
                    : event->kind == DeviceEventKind::kMemcpy ? summary.memcpys
                                                              : summary.memsets;
    count += 1;
    if (event->from_graph) summary.graph_events += 1;
    if (event->launch_id == 0) {
      summary.host_launches += 1;
    } else if (launches.insert(event->launch_id).second) {
      summary.host_launches += 1;
    }
    const auto us = static_cast<double>(event->duration_ns) / kNsPerUs;
    if (us < summary.options.short_launch_us) {
      summary.short_launches += 1;
      summary.short_launch_ms += us / 1e3;
    }
  }
  // Whole counts first: a third added three times is less than one.
  for (double* total :
       {&summary.kernels, &summary.memcpys, &summary.memsets, &summary.graph_events,
        &summary.host_launches, &summary.short_launches, &summary.short_launch_ms}) {
    *total /= static_cast<double>(summary.num_steps);
  }
}

void fill_times(std::span<const DeviceEvent* const> events, TraceSummary& summary) {
  const auto steps = static_cast<double>(summary.num_steps);
  std::map<std::string_view, Total> by_name;
  std::vector<Total> by_category(kNumKernelCategories);
  int64_t sum_ns = 0;
  for (const DeviceEvent* event : events) {
    auto [entry, is_new] = by_name.try_emplace(event->name);
    // Copies and kernels never share a name, so the first event decides for all.
    if (is_new) entry->second.category = categorise(*event);
    for (Total* total :
         {&entry->second, &by_category[static_cast<size_t>(entry->second.category)]}) {
      ++total->count;
      total->ns += event->duration_ns;
    }
    sum_ns += event->duration_ns;
  }
  for (const Total& total : by_category) {
    const auto ns = static_cast<double>(total.ns);
    summary.categories.push_back({ns / kNsPerMs / steps,
                                  sum_ns > 0 ? ns / static_cast<double>(sum_ns) : 0.0,
                                  static_cast<double>(total.count) / steps});
  }
  std::vector<std::pair<std::string_view, Total>> ranked(by_name.begin(), by_name.end());
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  ranked.resize(std::min(ranked.size(), static_cast<size_t>(summary.options.num_top_kernels)));
  for (const auto& [name, total] : ranked) {
    const auto ns = static_cast<double>(total.ns), count = static_cast<double>(total.count);
    summary.top_kernels.push_back({std::string(name), total.category, count / steps,
                                   ns / kNsPerMs / steps, ns / kNsPerUs / count});
  }
}

}  // namespace

std::vector<int64_t> device_step_boundaries(std::span<const DeviceEvent> events,
                                            std::span<const int64_t> host_marks_ns) {
  if (events.empty()) return {host_marks_ns.begin(), host_marks_ns.end()};
  if (host_marks_ns.size() < 2) {
    std::vector<int64_t> window = {events[0].start_ns, events[0].end_ns()};
    for (const DeviceEvent& event : events) {
      window[0] = std::min(window[0], event.start_ns);
      window[1] = std::max(window[1], event.end_ns());
    }
    return window;
  }
  const size_t num_steps = host_marks_ns.size() - 1;
  std::vector<int64_t> boundaries(host_marks_ns.begin(), host_marks_ns.end());
  std::vector<bool> found(num_steps + 1, false);
  // The device runs behind the host, so its own times stand in only where no launch was seen at
  // all.
  const bool any_launch = std::any_of(events.begin(), events.end(),
                                      [](const DeviceEvent& e) { return e.launch_ns != 0; });
  for (const DeviceEvent& event : events) {
    const int64_t launch = any_launch ? event.launch_ns : event.start_ns;
    const auto next = std::upper_bound(host_marks_ns.begin(), host_marks_ns.end(), launch);
    if (next == host_marks_ns.begin() || next == host_marks_ns.end()) continue;
    const auto step = static_cast<size_t>(next - host_marks_ns.begin()) - 1;
    if (event.kind == DeviceEventKind::kKernel) {
      boundaries[step] = found[step] ? std::min(boundaries[step], event.start_ns) : event.start_ns;
      found[step] = true;
    }
    if (step + 1 == num_steps) {
      boundaries[num_steps] =
          found[num_steps] ? std::max(boundaries[num_steps], event.end_ns()) : event.end_ns();
      found[num_steps] = true;
    }
  }
  for (size_t i = 1; i < boundaries.size(); ++i)
    boundaries[i] = std::max(boundaries[i], boundaries[i - 1]);
  return boundaries;
}

TraceSummary summarise_trace(std::span<const DeviceEvent> events,
                             std::span<const int64_t> boundaries_ns,
                             const TraceSummaryOptions& options) {
  LS_CHECK(boundaries_ns.size() >= 2 && std::is_sorted(boundaries_ns.begin(), boundaries_ns.end()),
           InternalError,
           "trace summary: {} step boundaries; at least two in ascending order are needed",
           boundaries_ns.size());
  TraceSummary summary;
  summary.options = options;
  summary.num_steps = static_cast<int64_t>(boundaries_ns.size()) - 1;
  const std::vector<const DeviceEvent*> order = by_start(events);
  std::vector<const DeviceEvent*> inside;
  for (const DeviceEvent* event : order) {
    const bool outside =
        event->start_ns < boundaries_ns.front() || event->start_ns >= boundaries_ns.back();
    if (outside) {
      ++summary.events_outside;
    } else {
      inside.push_back(event);
    }
  }
  fill_busy(order, boundaries_ns, summary);
  fill_communication(order, boundaries_ns, summary);
  fill_counts(inside, summary);
  fill_times(inside, summary);
  return summary;
}

nlohmann::json trace_summary_json(const TraceSummary& s) {
  nlohmann::json gaps = nlohmann::json::array(), kernels = nlohmann::json::array();
  for (const IdleGap& gap : s.largest_gaps) {
    gaps.push_back({{"us", rounded(gap.us)},
                    {"at_ms", rounded(gap.at_ms)},
                    {"before", short_kernel_name(gap.before)},
                    {"after", short_kernel_name(gap.after)}});
  }
  for (const KernelTime& k : s.top_kernels) {
    kernels.push_back({{"name", short_kernel_name(k.name)},
                       {"category", category_name(k.category)},
                       {"count_per_step", rounded(k.count_per_step)},
                       {"ms_per_step", rounded(k.ms_per_step)},
                       {"mean_us", rounded(k.mean_us)}});
  }
  nlohmann::json categories = nlohmann::json::object();
  for (size_t i = 0; i < s.categories.size(); ++i) {
    const CategoryTime& c = s.categories[i];
    categories[std::string(category_name(static_cast<KernelCategory>(i)))] = {
        {"ms_per_step", rounded(c.ms_per_step)},
        {"share", rounded(c.share)},
        {"count_per_step", rounded(c.count_per_step)}};
  }
  return {{"steps", s.num_steps},
          {"step_ms", percentiles_json(s.step_ms)},
          {"gpu_busy_ms", rounded(s.busy_ms)},
          {"gpu_busy_fraction", rounded(s.busy_fraction)},
          {"idle_us_per_step", rounded(s.idle_us)},
          {"communication_ms", rounded(s.communication_ms)},
          {"communication_exposed_ms", rounded(s.exposed_ms)},
          {"idle_gaps",
           {{"at_least_us", s.options.min_gap_us},
            {"count_per_step", rounded(s.gap_count)},
            {"us_per_step", rounded(s.gap_us)},
            {"largest", gaps}}},
          {"kernels_per_step", rounded(s.kernels)},
          {"memcpys_per_step", rounded(s.memcpys)},
          {"memsets_per_step", rounded(s.memsets)},
          {"host_launches_per_step", rounded(s.host_launches)},
          {"graph_nodes_per_step", rounded(s.graph_events)},
          {"short_launches",
           {{"below_us", s.options.short_launch_us},
            {"count_per_step", rounded(s.short_launches)},
            {"ms_per_step", rounded(s.short_launch_ms)}}},
          {"categories", categories},
          {"top_kernels", kernels},
          {"events_outside", s.events_outside}};
}

std::string trace_summary_text(const TraceSummary& s) {
  std::string text = fmt::format(
      "{} profiled steps of {:.2f} ms: GPU busy {:.2f} ms ({:.1f} %), {:.0f} us idle, of it {:.1f} "
      "gaps of {:.0f} us or more with {:.0f} us\n"
      "per step: {:.0f} kernels, {:.0f} copies, {:.0f} fills in {:.0f} launches; {:.0f} shorter "
      "than "
      "{:.0f} us take {:.2f} ms\n",
      s.num_steps, s.window_ms, s.busy_ms, 100 * s.busy_fraction, s.idle_us, s.gap_count,
      s.options.min_gap_us, s.gap_us, s.kernels, s.memcpys, s.memsets, s.host_launches,
      s.short_launches, s.options.short_launch_us, s.short_launch_ms);
  if (s.communication_ms > 0) {
    text += fmt::format("communication {:.2f} ms, of it {:.2f} ms beside nothing else\n",
                        s.communication_ms, s.exposed_ms);
  }
  for (size_t i = 0; i < s.categories.size(); ++i) {
    const CategoryTime& c = s.categories[i];
    if (c.count_per_step == 0) continue;
    text += fmt::format("  {:<13} {:>9.3f} ms {:>5.1f} % {:>8.0f} events\n",
                        category_name(static_cast<KernelCategory>(i)), c.ms_per_step, 100 * c.share,
                        c.count_per_step);
  }
  for (const KernelTime& k : s.top_kernels) {
    text += fmt::format("  {:>9.3f} ms {:>7.0f} x {:>8.1f} us  {:<12} {}\n", k.ms_per_step,
                        k.count_per_step, k.mean_us, category_name(k.category),
                        short_kernel_name(k.name, 100));
  }
  for (const IdleGap& gap : s.largest_gaps) {
    text += fmt::format("  idle {:.1f} us at {:.2f} ms, after {} before {}\n", gap.us, gap.at_ms,
                        short_kernel_name(gap.before, 60), short_kernel_name(gap.after, 60));
  }
  return text;
}

}  // namespace longship::runtime
