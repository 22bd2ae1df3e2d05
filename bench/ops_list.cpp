#include <iterator>

#include "base/strings.h"
#include "bench/families.h"

namespace longship::bench {

std::vector<OpRow> all_op_rows() {
  std::vector<OpRow> rows;
  for (const auto& family : {norm_rows, stream_rows, activation_rows, position_rows, flow_rows,
                             picture_rows, linear_rows, attention_rows, fp8_rows, optimizer_rows}) {
    std::vector<OpRow> more = family();
    rows.insert(rows.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
  }
  return rows;
}

std::vector<OpRow> select_op_rows(const std::vector<OpRow>& rows, std::string_view filter) {
  std::vector<OpRow> chosen;
  for (const OpRow& row : rows) {
    const std::string text = row.name + " " + row.shape;
    bool fits = true;
    for (const std::string& word : split(filter, ' '))
      fits = fits && text.find(word) != std::string::npos;
    if (fits) chosen.push_back(row);
  }
  return chosen;
}

}  // namespace longship::bench
