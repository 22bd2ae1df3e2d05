#include "base/svg_chart.h"
namespace longship::chart {
std::string render(const Figure& figure) {
  return "<svg><title>" + figure.title + "</title></svg>";
}
}  // namespace longship::chart
