#include "base/svg_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/chart_axis.h"
#include "base/error.h"
#include "base/strings.h"

namespace longship::chart {

namespace {

// Dark and saturated enough for thin lines on white, and told apart with colour-blind eyes (after
// Okabe and Ito).
constexpr std::array<std::string_view, 8> kPalette = {"#0063b2", "#d1490c", "#00806a", "#a8378f",
                                                      "#b07a00", "#4a90d9", "#6b4ea0", "#555555"};
constexpr std::string_view kInk = "#222222";
constexpr std::string_view kSoftInk = "#555555";
constexpr std::string_view kGrid = "#e4e4e4";
constexpr std::string_view kFrame = "#999999";

constexpr double kMargin = 20;  // around the figure
constexpr double kGap = 18;     // between panels

// Mean advance of a sans-serif letter in ems; errs on the wide side so that texts keep apart.
constexpr double kLetterWidth = 0.58;

// Letters, not bytes: continuation bytes of UTF-8 do not count.
double text_width(std::string_view text, double size) {
  const auto letters =
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return static_cast<double>(letters) * size * kLetterWidth;
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  // A single bad byte would make the whole document unreadable.
  return find_invalid_utf8(out) == std::string::npos ? out : printable(out, out.size() * 4);
}

std::string cut_to_width(std::string text, double size, double width) {
  if (text_width(text, size) <= width) return text;
  while (!text.empty() && text_width(text, size) + size > width) {
    do {
      text.pop_back();
    } while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80);
    while (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xC0) text.pop_back();
  }
  return text + "…";
}

struct Point {
  double x, y;
};

class Svg {
 public:
  void text(Point at, std::string_view content, double size, std::string_view anchor,
            std::string_view color, std::string_view extra = "") {
    out_ += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" text-anchor=\"{}\" "
        "fill=\"{}\"{}>{}</text>\n",
        at.x, at.y, size, anchor, color, extra, escape(content));
  }
  void line(Point a, Point b, std::string_view color, double width, std::string_view extra = "") {
    out_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{:g}\"{}/>\n",
        a.x, a.y, b.x, b.y, color, width, extra);
  }
  void raw(std::string_view text) { out_ += text; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// Room inside a panel, in pixels.
struct Box {
  double left, top, right, bottom;
  double width() const { return right - left; }
  double height() const { return bottom - top; }
};

struct Axes {
  Axis x, y;
  Box box;
  double px(double v) const { return box.left + x.fraction(v) * box.width(); }
  double py(double v) const { return box.bottom - y.fraction(v) * box.height(); }
};

struct Sizes {
  double title, label, tick, line;
};

Axes make_axes(const Panel& panel) {
  Range x, y;
  for (const Series& s : panel.series) {
    const bool band = !s.y_low.empty() || !s.y_high.empty();
    if (s.x.size() != s.y.size() ||
        (band && (s.y_low.size() != s.x.size() || s.y_high.size() != s.x.size()))) {
      throw InternalError(fmt::format("chart series '{}': {} x, {} y, {} band values", s.name,
                                      s.x.size(), s.y.size(),
                                      std::max(s.y_low.size(), s.y_high.size())));
    }
    for (size_t i = 0; i < s.x.size(); ++i) {
      x.add(s.x[i], false);
      y.add(s.y[i], panel.log_y);
      if (band) {
        y.add(s.y_low[i], panel.log_y);
        y.add(s.y_high[i], panel.log_y);
      }
    }
  }
  for (const VerticalLine& line : panel.lines) x.add(line.x, false);
  Axes axes;
  axes.x = Axis(x, panel.x_min, panel.x_max, false, /*pad=*/0);
  axes.y = Axis(y, panel.y_min, panel.y_max, panel.log_y, /*pad=*/0.06);
  return axes;
}

// The points of a line without gaps, thinned to the lowest and highest of every pixel column.
std::vector<Point> thin(const std::vector<Point>& points, double width) {
  if (static_cast<double>(points.size()) <= 4 * width) return points;
  std::vector<Point> out;
  for (size_t begin = 0; begin < points.size();) {
    size_t end = begin, low = begin, high = begin;
    const double column = std::floor(points[begin].x);
    for (; end < points.size() && std::floor(points[end].x) == column; ++end) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
    }
    out.push_back(points[std::min(low, high)]);
    if (low != high) out.push_back(points[std::max(low, high)]);
    begin = end;
  }
  return out;
}

std::string path_data(const std::vector<Point>& points) {
  std::string out;
  for (size_t i = 0; i < points.size(); ++i) {
    out += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", points[i].x, points[i].y);
  }
  return out;
}

bool drawable(double v, bool log) {
  return std::isfinite(v) && (!log || v > 0);
}

void draw_band(Svg& svg, const Axes& axes, const Series& s, std::string_view color, bool log) {
  std::vector<Point> upper, lower;
  const auto flush = [&] {
    upper = thin(upper, axes.box.width());
    lower = thin(lower, axes.box.width());
    std::reverse(lower.begin(), lower.end());
    upper.insert(upper.end(), lower.begin(), lower.end());
    if (upper.size() > 2) {
      svg.raw(fmt::format("<path d=\"{}Z\" fill=\"{}\" fill-opacity=\"0.16\"/>\n", path_data(upper),
                          color));
    }
    upper.clear();
    lower.clear();
  };
  for (size_t i = 0; i < s.y_low.size(); ++i) {
    if (!drawable(s.y_low[i], log) || !drawable(s.y_high[i], log) || !std::isfinite(s.x[i])) {
      flush();
      continue;
    }
    upper.push_back({axes.px(s.x[i]), axes.py(s.y_high[i])});
    lower.push_back({axes.px(s.x[i]), axes.py(s.y_low[i])});
  }
  flush();
}

void draw_markers(Svg& svg, const std::vector<Point>& points, std::string_view color) {
  std::string path;
  // A zero-length line with round caps is a dot, and far shorter than a circle element.
  for (const Point& p : points) path += fmt::format("M{:.1f} {:.1f}h0", p.x, p.y);
  svg.raw(fmt::format(
      "<path d=\"{}\" stroke=\"{}\" stroke-width=\"5\" stroke-linecap=\"round\" fill=\"none\"/>\n",
      path, color));
}

void draw_series(Svg& svg, const Axes& axes, const Series& s, std::string_view color, bool log,
                 double line_width) {
  draw_band(svg, axes, s, color, log);
  std::vector<Point> run;
  const auto flush = [&] {
    if (run.empty()) return;
    const bool lone = run.size() == 1;  // a line would be invisible
    const std::vector<Point> points = thin(run, axes.box.width());
    run.clear();
    if (s.style == Style::kMarkers || lone) return draw_markers(svg, points, color);
    svg.raw(
        fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\"{}{} "
                    "stroke-linejoin=\"round\"/>\n",
                    path_data(points), color, s.faint ? 1.0 : line_width,
                    s.style == Style::kDashed ? " stroke-dasharray=\"6 4\"" : "",
                    s.faint ? " stroke-opacity=\"0.35\"" : ""));
  };
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (drawable(s.y[i], log) && std::isfinite(s.x[i])) {
      run.push_back({axes.px(s.x[i]), axes.py(s.y[i])});
    } else {
      flush();
    }
  }
  flush();
}

void draw_grid(Svg& svg, const Axes& axes, const Sizes& sizes) {
  const Box& b = axes.box;
  for (const double v : axes.y.minor_ticks()) {
    svg.line({b.left, axes.py(v)}, {b.right, axes.py(v)}, "#f1f1f1", 1);
  }
  for (const double v : axes.y.ticks()) {
    svg.line({b.left, axes.py(v)}, {b.right, axes.py(v)}, kGrid, 1);
    svg.text({b.left - 7, axes.py(v) + sizes.tick * 0.36}, axes.y.label(v), sizes.tick, "end",
             kSoftInk);
  }
  for (const double v : axes.x.ticks()) {
    svg.line({axes.px(v), b.top}, {axes.px(v), b.bottom}, kGrid, 1);
    svg.text({axes.px(v), b.bottom + sizes.tick + 6}, axes.x.label(v), sizes.tick, "middle",
             kSoftInk);
  }
}

void draw_vertical_lines(Svg& svg, const Axes& axes, const Panel& panel, const Sizes& sizes) {
  double free_from = axes.box.left;  // labels that would run into the one before are left out
  for (const VerticalLine& line : panel.lines) {
    const double x = axes.px(line.x);
    if (!(x >= axes.box.left - 0.5 && x <= axes.box.right + 0.5)) continue;
    svg.line({x, axes.box.top}, {x, axes.box.bottom}, "#777777", 1, " stroke-dasharray=\"2 3\"");
    const double half = text_width(line.label, sizes.tick) / 2;
    const double middle =
        std::clamp(x, axes.box.left + half, std::max(axes.box.left + half, axes.box.right - half));
    if (line.label.empty() || middle - half < free_from) continue;
    free_from = middle + half + sizes.tick;
    svg.text({middle, axes.box.top - 5}, line.label, sizes.tick, "middle", kSoftInk);
  }
}

// Colours by name over the whole figure, so that one legend serves every panel.
class Legend {
 public:
  explicit Legend(const Figure& figure) {
    for (const Panel& panel : figure.panels) {
      for (const Series& s : panel.series) {
        const bool known = std::any_of(entries_.begin(), entries_.end(),
                                       [&](const Entry& e) { return e.name == s.name; });
        if (known) continue;
        entries_.push_back({s.name, s.color >= 0 ? s.color : next_color_++, s.style, s.faint});
      }
    }
  }
  std::string_view color(const Series& s) const {
    const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& e) { return e.name == s.name; });
    const int index = s.color >= 0 ? s.color : entry->color;
    return kPalette[static_cast<size_t>(index) % kPalette.size()];
  }
  /// Draws from `top` on, wrapped to `width`, and returns the height used.
  double draw(Svg& svg, double left, double top, double width, double size) const {
    constexpr double kSwatch = 26, kBetween = 22;
    double x = left, y = top;
    bool any = false;
    for (const Entry& e : entries_) {
      if (e.name.empty()) continue;
      const double needed = kSwatch + 7 + text_width(e.name, size);
      if (any && x + needed > left + width) {
        x = left;
        y += size * 1.6;
      }
      any = true;
      const std::string_view ink = kPalette[static_cast<size_t>(e.color) % kPalette.size()];
      const double middle = y + size * 0.65;
      if (e.style == Style::kMarkers) {
        draw_markers(svg, {{x + kSwatch / 2, middle}}, ink);
      } else {
        svg.line({x, middle}, {x + kSwatch, middle}, ink, e.faint ? 1.5 : 2.5,
                 e.style == Style::kDashed ? " stroke-dasharray=\"6 4\""
                 : e.faint                 ? " stroke-opacity=\"0.5\""
                                           : "");
      }
      svg.text({x + kSwatch + 7, y + size}, e.name, size, "start", kInk);
      x += needed + kBetween;
    }
    return any ? y - top + size * 1.6 : 0;
  }

 private:
  struct Entry {
    std::string name;
    int color;
    Style style;
    bool faint;
  };
  std::vector<Entry> entries_;
  int next_color_ = 0;
};

// Room around the plots, equal for all panels of a figure (label_column) or of a row (x_label), so
// that plots line up.
struct Room {
  double label_column = 0;
  bool x_label = false;
};

void lay_out(Axes& axes, const Panel& panel, const Box& outer, const Sizes& sizes,
             const Room& room) {
  const bool labelled_lines = std::any_of(panel.lines.begin(), panel.lines.end(),
                                          [](const VerticalLine& l) { return !l.label.empty(); });
  Box& b = axes.box;
  b.top = outer.top + (panel.title.empty() ? 8 : sizes.title * 1.7) +
          (labelled_lines ? sizes.tick + 4 : 0);
  b.bottom = outer.bottom - (sizes.tick + 10) - (room.x_label ? sizes.label + 8 : 0);
  b.left = outer.left + room.label_column;
  b.right = outer.right - 16;
  axes.x.choose_ticks(b.width(), sizes.tick * kLetterWidth, /*horizontal=*/true);
  axes.y.choose_ticks(b.height(), sizes.tick, /*horizontal=*/false);
}

double left_column(const Axes& axes, const Panel& panel, const Sizes& sizes) {
  double widest = 0;
  for (const double v : axes.y.ticks())
    widest = std::max(widest, text_width(axes.y.label(v), sizes.tick));
  return widest + 12 + (panel.y_label.empty() ? 0 : sizes.label + 8);
}

void draw_panel(Svg& svg, const Panel& panel, Axes& axes, const Box& outer, const Legend& legend,
                const Sizes& sizes, int64_t number) {
  const Box& b = axes.box;
  if (!panel.title.empty()) {
    svg.text({b.left, outer.top + sizes.title * 1.1},
             cut_to_width(panel.title, sizes.title, b.width()), sizes.title, "start", kInk,
             " font-weight=\"600\"");
  }
  draw_grid(svg, axes, sizes);
  draw_vertical_lines(svg, axes, panel, sizes);
  svg.raw(
      fmt::format("<clipPath id=\"plot{}\"><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
                  "height=\"{:.1f}\"/></clipPath>\n"
                  "<g clip-path=\"url(#plot{})\">\n",
                  number, b.left - 3, b.top - 3, b.width() + 6, b.height() + 6, number));
  for (const Series& s : panel.series)
    draw_series(svg, axes, s, legend.color(s), panel.log_y, sizes.line);
  svg.raw("</g>\n");
  svg.line({b.left, b.top}, {b.left, b.bottom}, kFrame, 1);
  svg.line({b.left, b.bottom}, {b.right, b.bottom}, kFrame, 1);
  const bool empty = axes.x.empty() || axes.y.empty();
  if (empty)
    svg.text({b.left + b.width() / 2, b.top + b.height() / 2}, "no data", sizes.label, "middle",
             kSoftInk);
  if (!panel.x_label.empty()) {
    svg.text({b.left + b.width() / 2, outer.bottom - 6},
             cut_to_width(panel.x_label, sizes.label, b.width()), sizes.label, "middle", kInk);
  }
  if (!panel.y_label.empty()) {
    const Point at = {outer.left + sizes.label, b.top + b.height() / 2};
    svg.text(at, cut_to_width(panel.y_label, sizes.label, b.height()), sizes.label, "middle", kInk,
             fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", at.x, at.y));
  }
}

// Draws every panel, the first one in `first`, and returns the height of the grid.
double draw_panels(Svg& svg, const Figure& figure, const Legend& legend, const Sizes& sizes,
                   const Box& first, int64_t columns) {
  const auto num_panels = static_cast<int64_t>(figure.panels.size());
  if (num_panels == 0) return 0;
  const int64_t rows = (num_panels + columns - 1) / columns;
  const auto outer_box = [&](int64_t i) {
    const double right = static_cast<double>(i % columns) * (first.width() + kGap);
    const double down = static_cast<double>(i / columns) * (first.height() + kGap);
    return Box{first.left + right, first.top + down, first.right + right, first.bottom + down};
  };
  std::vector<Axes> axes;
  std::vector<Room> rooms(static_cast<size_t>(rows));
  for (int64_t i = 0; i < num_panels; ++i) {
    const Panel& panel = figure.panels[static_cast<size_t>(i)];
    axes.push_back(make_axes(panel));
    if (!panel.x_label.empty()) rooms[static_cast<size_t>(i / columns)].x_label = true;
  }
  // The first pass finds out how wide the tick labels are, the second one draws.
  double label_column = 0;
  for (const bool draw : {false, true}) {
    for (Room& room : rooms) room.label_column = label_column;
    for (int64_t i = 0; i < num_panels; ++i) {
      const auto index = static_cast<size_t>(i);
      const Panel& panel = figure.panels[index];
      lay_out(axes[index], panel, outer_box(i), sizes, rooms[static_cast<size_t>(i / columns)]);
      if (draw) {
        draw_panel(svg, panel, axes[index], outer_box(i), legend, sizes, i);
      } else {
        label_column = std::max(label_column, left_column(axes[index], panel, sizes));
      }
    }
  }
  return static_cast<double>(rows) * (first.height() + kGap) - kGap;
}

}  // namespace

std::string render(const Figure& figure) {
  const int columns = std::max(1, figure.columns);
  const Sizes sizes = columns == 1 ? Sizes{15, 14, 13, 2} : Sizes{13, 12, 11.5, 1.7};
  const double panel_width = figure.panel_width > 0 ? figure.panel_width : columns == 1 ? 860 : 360;
  const double panel_height = figure.panel_height > 0 ? figure.panel_height
                              : columns == 1          ? 400
                                                      : 210;
  const double width = 2 * kMargin + columns * panel_width + (columns - 1) * kGap;

  Svg body;
  const Legend legend(figure);
  double y = kMargin;
  if (!figure.title.empty()) {
    body.text({kMargin, y + 18}, cut_to_width(figure.title, 20, width - 2 * kMargin), 20, "start",
              kInk, " font-weight=\"600\"");
    y += 30;
  }
  if (!figure.subtitle.empty()) {
    body.text({kMargin, y + 12}, cut_to_width(figure.subtitle, 13, width - 2 * kMargin), 13,
              "start", kSoftInk);
    y += 24;
  }
  if (const double used = legend.draw(body, kMargin, y, width - 2 * kMargin, 13); used > 0)
    y += used + 8;

  y += draw_panels(body, figure, legend, sizes,
                   {kMargin, y, kMargin + panel_width, y + panel_height}, columns);
  const double height = y + kMargin;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 "
      "0 {0:.0f} {1:.0f}\" "
      "font-family=\"Inter, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
      "<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{3}</svg>\n",
      width, height, escape(figure.title), body.take());
}

}  // namespace longship::chart
