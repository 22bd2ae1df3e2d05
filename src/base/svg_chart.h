#pragma once
// Line charts as SVG: loss curves and the open-loop picture. Pure text, no fonts or scripts needed.

#include <optional>
#include <string>
#include <vector>

namespace longship::chart {

enum class Style { kLine, kDashed, kMarkers };

/// Points in x order. A y that is not finite (or not positive on a log axis) leaves a gap.
struct Series {
  std::string name;  // in the legend; "" keeps it out
  std::vector<double> x, y;
  Style style = Style::kLine;
  std::vector<double> y_low, y_high;  // a shaded band along x; both empty or as long as x
  int color = -1;      // index into the palette; -1 gives every name of the figure its own
  bool faint = false;  // thin and pale, e.g. raw values behind a smoothed curve
};

/// A vertical line, e.g. where a checkpoint was written or an action chunk begins.
struct VerticalLine {
  double x = 0;
  std::string label;  // written beside it; may be empty
};

struct Panel {
  std::string title;
  std::string x_label, y_label;  // with units, e.g. "time (s)"
  std::vector<Series> series;
  std::vector<VerticalLine> lines;
  bool log_y = false;
  std::optional<double> x_min, x_max, y_min, y_max;  // otherwise from the data
};

struct Figure {
  std::string title;
  std::string subtitle;
  std::vector<Panel> panels;  // filled row by row
  int columns = 1;
  double panel_width = 0;   // pixels; 0 = 860 for one column, else 360
  double panel_height = 0;  // pixels; 0 = 400 for one column, else 210
};

/// A complete SVG document, white background. The legend stands once above the panels and never
/// covers data. Long series are thinned to what can be seen (lowest and highest value per pixel
/// column are kept). Throws InternalError when x and y (or a band) differ in length.
std::string render(const Figure& figure);

}  // namespace longship::chart
