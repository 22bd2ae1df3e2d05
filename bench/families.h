#pragma once
// The families of the operator table; every function gives the rows of one.

#include "bench/ops_bench.h"

namespace longship::bench {

std::vector<OpRow> norm_rows();
std::vector<OpRow> stream_rows();
std::vector<OpRow> linear_rows();
std::vector<OpRow> attention_rows();
std::vector<OpRow> activation_rows();
std::vector<OpRow> position_rows();
std::vector<OpRow> flow_rows();
std::vector<OpRow> picture_rows();
std::vector<OpRow> fp8_rows();
std::vector<OpRow> optimizer_rows();

}  // namespace longship::bench
