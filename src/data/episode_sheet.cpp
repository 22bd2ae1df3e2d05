#include "data/episode_sheet.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "base/svg_chart.h"
#include "io/video_png.h"

namespace longship::data {

namespace {

constexpr double kWidth = 1160, kMargin = 20, kGap = 8;  // pixels
constexpr int64_t kLargestSide = 320;                    // of a stored picture
constexpr int64_t kMaxPanels = 48;

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out;
}

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += k <= n ? kLetters[group >> (18 - 6 * k) & 63U] : '=';
    }
  }
  return out;
}

/// Every pixel of the result is the mean of factor x factor pixels.
Image reduced(const Image& image) {
  const int64_t factor =
      std::max<int64_t>(1, (std::max(image.width, image.height) + kLargestSide - 1) / kLargestSide);
  Image out;
  out.height = std::max<int64_t>(1, image.height / factor);
  out.width = std::max<int64_t>(1, image.width / factor);
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x) {
      std::array<int64_t, 3> sum{};
      int64_t count = 0;
      for (int64_t dy = 0; dy < factor && y * factor + dy < image.height; ++dy) {
        for (int64_t dx = 0; dx < factor && x * factor + dx < image.width; ++dx, ++count) {
          const auto at =
              static_cast<size_t>(((y * factor + dy) * image.width + x * factor + dx) * 3);
          for (size_t c = 0; c < 3; ++c) sum[c] += image.rgb[at + c];
        }
      }
      for (const int64_t total : sum) {
        out.rgb.push_back(static_cast<uint8_t>((total + count / 2) / count));
      }
    }
  }
  return out;
}

std::string text_at(double x, double y, double size, std::string_view colour,
                    std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:.0f}\" fill=\"{}\">{}</text>\n",
                     x, y, size, colour, escape(text));
}

std::vector<int64_t> spread_frames(int64_t length, int64_t count) {
  const int64_t n = std::min(length, count);
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < n; ++i) {
    frames.push_back(n == 1 ? 0 : (i * (length - 1) + (n - 1) / 2) / (n - 1));
  }
  return frames;
}

/// One row of pictures; returns its height.
double draw_camera(const Dataset& dataset, const Episode& episode, const std::string& camera,
                   const std::vector<int64_t>& frames, double top, std::string& svg) {
  const auto columns = static_cast<double>(frames.size());
  const double cell = std::min(260.0, (kWidth - 2 * kMargin - (columns - 1) * kGap) / columns);
  WindowSpec windows;
  windows.cameras[camera] = {0};
  double tallest = 0;
  svg += text_at(kMargin, top + 14, 13, "#222222", camera);
  for (size_t i = 0; i < frames.size(); ++i) {
    const RawSample sample = dataset.get(episode.first_sample + frames[i], windows);
    const Image picture = reduced(*sample.cameras.at(camera).frames.front());
    const double height =
        cell * static_cast<double>(picture.height) / static_cast<double>(picture.width);
    const double x = kMargin + static_cast<double>(i) * (cell + kGap), y = top + 22;
    tallest = std::max(tallest, height);
    svg += fmt::format(
        "<image x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "href=\"data:image/png;base64,{}\"/>\n",
        x, y, cell, height, base64(io::encode_png(picture.rgb, picture.height, picture.width)));
    svg += text_at(x, y + height + 13, 11, "#555555",
                   fmt::format("frame {}, {:.2f} s", frames[i],
                               static_cast<double>(frames[i]) / dataset.fps()));
  }
  return 22 + tallest + 24;
}

std::vector<double> column_of(const std::vector<float>& values, int64_t width, int64_t dim) {
  std::vector<double> out;
  for (auto i = static_cast<size_t>(dim); i < values.size(); i += static_cast<size_t>(width)) {
    out.push_back(static_cast<double>(values[i]));
  }
  return out;
}

std::string dim_name(const Feature& feature, int64_t dim) {
  return dim < static_cast<int64_t>(feature.dim_names.size())
             ? feature.dim_names[static_cast<size_t>(dim)]
             : fmt::format("[{}]", dim);
}

/// One panel per dimension; state and action share it where they have the same width.
chart::Figure curves(const Dataset& dataset, int64_t position, const SheetOptions& options) {
  chart::Figure figure;
  const int64_t positions[] = {position};
  const Episode& episode = dataset.episodes()[static_cast<size_t>(position)];
  std::vector<double> time;
  for (int64_t k = 0; k < episode.length; ++k) {
    time.push_back(static_cast<double>(k) / dataset.fps());
  }
  const Feature* state = dataset.find_feature(options.state);
  const Feature* action = dataset.find_feature(options.action);
  const bool together = state != nullptr && action != nullptr && state->width() == action->width();
  int colour = 0;
  for (const Feature* feature : {state, action}) {
    if (feature == nullptr || feature->kind != FeatureKind::kNumeric) continue;
    const std::vector<float> values = dataset.column_values(feature->name, positions);
    const int64_t dims = std::min(feature->width(), kMaxPanels);
    for (int64_t d = 0; d < dims; ++d) {
      const bool joins = together && feature == action;
      if (!joins) {
        chart::Panel panel;
        panel.title =
            together ? dim_name(*feature, d) : feature->name + " " + dim_name(*feature, d);
        panel.x_label = "time (s)";
        figure.panels.push_back(std::move(panel));
      }
      chart::Panel& panel = joins ? figure.panels[static_cast<size_t>(d)] : figure.panels.back();
      chart::Series series;
      series.name = feature->name;
      series.x = time;
      series.y = column_of(values, feature->width(), d);
      series.style = feature == action ? chart::Style::kDashed : chart::Style::kLine;
      series.color = colour;
      panel.series.push_back(std::move(series));
    }
    ++colour;
  }
  figure.columns =
      figure.panels.size() < 3 ? std::max<int>(1, static_cast<int>(figure.panels.size())) : 3;
  return figure;
}

double height_of(const std::string& svg) {
  const size_t at = svg.find("height=\"");
  LS_CHECK(at != std::string::npos, InternalError, "a chart without a height");
  double height = 0;
  std::from_chars(svg.data() + at + 8, svg.data() + svg.size(), height);
  return height;
}

}  // namespace

std::string episode_sheet(const Dataset& dataset, int64_t position, const SheetOptions& options) {
  const Episode& episode = dataset.episodes()[static_cast<size_t>(position)];
  LS_CHECK(episode.length > 0, DataError, "episode {} is empty", episode.index);
  std::string body;
  body += text_at(
      kMargin, 30, 18, "#222222",
      fmt::format("{}: episode {}",
                  dataset.root().filename().string().empty() ? dataset.root().string()
                                                             : dataset.root().filename().string(),
                  episode.index));
  std::vector<std::string> tasks;
  for (const std::string& task : episode.tasks) tasks.push_back(printable(task, 120));
  if (tasks.empty()) tasks.push_back(printable(dataset.task_of(episode.first_sample), 120));
  body += text_at(kMargin, 50, 13, "#555555",
                  fmt::format("{} frames, {:.2f} s at {:g} frames/s: {}", episode.length,
                              static_cast<double>(episode.length) / dataset.fps(), dataset.fps(),
                              join(tasks, " | ")));
  double top = 64;
  const std::vector<int64_t> frames = spread_frames(episode.length, options.pictures);
  for (const std::string& camera : dataset.cameras()) {
    top += draw_camera(dataset, episode, camera, frames, top, body);
  }
  const chart::Figure figure = curves(dataset, position, options);
  if (!figure.panels.empty()) {
    const std::string chart = chart::render(figure);
    body += fmt::format("<g transform=\"translate(0 {:.1f})\">\n{}</g>\n", top,
                        chart.substr(chart.find("<svg")));
    top += height_of(chart);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>\n",
      kWidth, top + kMargin, body);
}

}  // namespace longship::data
