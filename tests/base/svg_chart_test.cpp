#include "base/svg_chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/chart_axis.h"
#include "base/error.h"

namespace longship::chart {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Figure one_panel(Series series, bool log_y = false) {
  Panel panel;
  panel.x_label = "step";
  panel.log_y = log_y;
  panel.series = {std::move(series)};
  Figure figure;
  figure.panels = {panel};
  return figure;
}

Series line(std::vector<double> x, std::vector<double> y) {
  Series s;
  s.name = "loss";
  s.x = std::move(x);
  s.y = std::move(y);
  return s;
}

int64_t count(std::string_view text, std::string_view what) {
  int64_t n = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> out;
  for (const double tick : axis.ticks()) out.push_back(axis.label(tick));
  return out;
}

Axis axis_of(double min, double max, bool log = false) {
  Axis axis({min, max}, {}, {}, log, 0);
  axis.choose_ticks(400, 13, false);
  return axis;
}

TEST(ChartAxis, RoundTicksWithJustEnoughDigits) {
  EXPECT_THAT(labels(axis_of(0, 1)), ::testing::ElementsAre("0", "0.1", "0.2", "0.3", "0.4", "0.5",
                                                            "0.6", "0.7", "0.8", "0.9", "1.0"));
  EXPECT_THAT(labels(axis_of(-2e6, 2e6)), ::testing::Contains("-1.5M"));
  EXPECT_THAT(labels(axis_of(0, 30000)), ::testing::Contains("25k"));
  EXPECT_THAT(labels(axis_of(0, 8000)), ::testing::Contains("4000"));
  EXPECT_THAT(labels(axis_of(0, 2e-5)), ::testing::Contains("1e-05"));
  EXPECT_THAT(labels(axis_of(1e-4, 10, true)),
              ::testing::ElementsAre("1e-04", "0.001", "0.01", "0.1", "1", "10"));
}

TEST(ChartAxis, FlatAndEmptyDataHaveARange) {
  EXPECT_DOUBLE_EQ(axis_of(5, 5).fraction(5), 0.5);
  const Axis empty({}, {}, {}, false, 0);
  EXPECT_TRUE(empty.empty());
  EXPECT_DOUBLE_EQ(empty.fraction(1), 1);
}

TEST(SvgChart, IsOneDocumentWithLabelsAndLegend) {
  Figure figure = one_panel(line({0, 1, 2}, {3, 2, 1}));
  figure.title = "Loss <of> \"a & b\"";
  const std::string svg = render(figure);
  EXPECT_THAT(svg, ::testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("Loss &lt;of&gt; &quot;a &amp; b&quot;"));
  EXPECT_THAT(svg, HasSubstr(">step</text>"));
  EXPECT_THAT(svg, HasSubstr(">loss</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SvgChart, BadBytesInTextsStayValidUtf8) {
  Figure figure = one_panel(line({0, 1}, {0, 1}));
  figure.title = "a\xff\x01";
  const std::string svg = render(figure);
  EXPECT_THAT(svg, HasSubstr("a\\xff"));
}

TEST(SvgChart, NonFiniteValuesLeaveGaps) {
  const double nan = std::nan("");
  const std::string svg = render(one_panel(
      line({0, 1, 2, 3, 4, 5}, {1, 2, nan, 2, 1, std::numeric_limits<double>::infinity()})));
  EXPECT_EQ(count(svg, "fill=\"none\" stroke=\"#"), 2);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgChart, LogAxisSkipsValuesThatHaveNoLogarithm) {
  const std::string svg = render(one_panel(line({0, 1, 2, 3}, {1, 0.01, 0, -1}), true));
  EXPECT_THAT(svg, HasSubstr(">0.1</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SvgChart, NoDataSaysSo) {
  EXPECT_THAT(render(one_panel(line({}, {}))), HasSubstr("no data"));
  EXPECT_THAT(render(Figure()), ::testing::EndsWith("</svg>\n"));
}

TEST(SvgChart, LongSeriesAreThinnedButKeepTheirPeaks) {
  std::vector<double> x(1000000), y(1000000, 1.0);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
  y[777777] = 50;
  const std::string svg = render(one_panel(line(x, y)));
  EXPECT_LT(svg.size(), 60000u);
  EXPECT_GT(count(svg, "L"), 500);
  // Without the peak the picture would be that of a constant.
  EXPECT_NE(svg, render(one_panel(line(x, std::vector<double>(x.size(), 1.0)))));
  EXPECT_THAT(svg, HasSubstr(">50</text>"));
}

TEST(SvgChart, PanelsBandsAndVerticalLines) {
  Figure figure;
  figure.columns = 3;
  for (int i = 0; i < 7; ++i) {
    Panel panel;
    panel.title = "action " + std::to_string(i);
    Series s = line({0, 1, 2}, {1, 2, 3});
    s.y_low = {0, 1, 2};
    s.y_high = {2, 3, 4};
    panel.series = {s};
    panel.lines = {{1, "chunk"}, {99, "outside"}};
    panel.x_max = 2;
    figure.panels.push_back(panel);
  }
  const std::string svg = render(figure);
  EXPECT_EQ(count(svg, "fill-opacity"), 7);
  EXPECT_EQ(count(svg, ">chunk</text>"), 7);
  EXPECT_EQ(count(svg, ">outside</text>"), 0);
  EXPECT_EQ(count(svg, ">loss</text>"), 1);  // one legend for all
}

TEST(SvgChart, LengthsMustAgree) {
  EXPECT_THROW(render(one_panel(line({0, 1}, {1}))), InternalError);
}

}  // namespace
}  // namespace longship::chart
