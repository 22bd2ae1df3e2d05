// Actions relative to a state. Poses of an end effector are x, y, z and the first two rows of a
// rotation.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "models/groot/state_action.h"

namespace longship::models {
namespace {

using Matrix = std::array<std::array<double, 3>, 3>;

template <class T>
T dot(const std::array<T, 3>& a, const std::array<T, 3>& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

template <class T>
std::array<T, 3> cross(const std::array<T, 3>& a, const std::array<T, 3>& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

template <class T>
std::array<T, 3> unit(std::array<T, 3> v, const std::string& where) {
  const T length = std::sqrt(dot(v, v));
  LS_CHECK(std::isfinite(length) && length > T{1e-12}, DataError,
           "{}: its two rows of a rotation give no direction (one is zero, or they are parallel)",
           where);
  for (T& x : v) x /= length;
  return v;
}

/// Two rows made orthonormal in the arithmetic of T, the third their cross product.
template <class T>
Matrix gram_schmidt(std::span<const double> rows, const std::string& where) {
  std::array<T, 3> a{}, b{};
  for (size_t i = 0; i < 3; ++i) {
    a[i] = static_cast<T>(rows[i]);
    b[i] = static_cast<T>(rows[i + 3]);
  }
  const std::array<T, 3> x = unit(a, where);
  const T along = dot(x, b);
  for (size_t i = 0; i < 3; ++i) b[i] -= along * x[i];
  const std::array<T, 3> y = unit(b, where);
  const std::array<T, 3> z = cross(x, y);
  Matrix m{};
  for (size_t i = 0; i < 3; ++i) {
    m[0][i] = x[i];
    m[1][i] = y[i];
    m[2][i] = z[i];
  }
  return m;
}

/// The rotation nearest to a nearly orthonormal matrix: Newton's iteration for the polar factor,
/// which squares the error in every round.
Matrix nearest_rotation(Matrix m) {
  for (int round = 0; round < 6; ++round) {
    const Matrix cofactors = {cross(m[1], m[2]), cross(m[2], m[0]), cross(m[0], m[1])};
    const double determinant = dot(m[0], cofactors[0]);
    for (size_t r = 0; r < 3; ++r) {
      for (size_t c = 0; c < 3; ++c) m[r][c] = 0.5 * (m[r][c] + cofactors[r][c] / determinant);
    }
  }
  return m;
}

Matrix rotation_of(std::span<const double> pose, bool wide, const std::string& where) {
  const std::span<const double> rows = pose.subspan(3, 6);
  return nearest_rotation(wide ? gram_schmidt<double>(rows, where)
                               : gram_schmidt<float>(rows, where));
}

void check_sizes(std::span<const double> reference, std::span<const double> pose,
                 std::span<double> out) {
  LS_CHECK(reference.size() == 9 && pose.size() == 9 && out.size() == 9, ShapeError,
           "a pose has 9 numbers, got {}, {} and {}", reference.size(), pose.size(), out.size());
}

std::span<const double> last_row(const GrootValues& action, const GrootValues& state,
                                 const std::string& where) {
  LS_CHECK(state.rows >= 1 && state.width == action.width, DataError,
           "{}: has {} dimensions, the state that it is relative to {}", where, action.width,
           state.width);
  return std::span(state.data).last(static_cast<size_t>(state.width));
}

}  // namespace

void groot_relative_pose(std::span<const double> reference, bool reference_wide,
                         std::span<const double> pose, bool pose_wide, std::span<double> out,
                         const std::string& where) {
  check_sizes(reference, pose, out);
  const Matrix base = rotation_of(reference, reference_wide, where + ", its reference");
  const Matrix target = rotation_of(pose, pose_wide, where);
  std::array<double, 9> result{};
  for (size_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < 3; ++k) result[r] += base[k][r] * (pose[k] - reference[k]);
  }
  for (size_t r = 0; r < 2; ++r) {
    for (size_t c = 0; c < 3; ++c) {
      for (size_t k = 0; k < 3; ++k) result[3 + 3 * r + c] += base[k][r] * target[k][c];
    }
  }
  std::copy(result.begin(), result.end(), out.begin());
}

void groot_absolute_pose(std::span<const double> reference, bool reference_wide,
                         std::span<const double> pose, bool pose_wide, std::span<double> out,
                         const std::string& where) {
  check_sizes(reference, pose, out);
  const Matrix base = rotation_of(reference, reference_wide, where + ", its reference");
  const Matrix target = rotation_of(pose, pose_wide, where);
  std::array<double, 9> result{};
  for (size_t r = 0; r < 3; ++r) {
    result[r] = reference[r];
    for (size_t k = 0; k < 3; ++k) result[r] += base[r][k] * pose[k];
  }
  for (size_t r = 0; r < 2; ++r) {
    for (size_t c = 0; c < 3; ++c) {
      for (size_t k = 0; k < 3; ++k) result[3 + 3 * r + c] += base[r][k] * target[k][c];
    }
  }
  std::copy(result.begin(), result.end(), out.begin());
}

GrootValues groot_to_relative(const GrootActionRule& rule, bool compose_poses,
                              const GrootValues& raw, const GrootValues& state,
                              const std::string& where) {
  const std::span<const double> base = last_row(raw, state, where);
  GrootValues out = raw;
  out.wide = raw.wide || compose_poses;
  for (int64_t r = 0; r < raw.rows; ++r) {
    const auto at = static_cast<size_t>(r * raw.width);
    if (rule.pose && compose_poses) {
      groot_relative_pose(base, state.wide, {&raw.data[at], base.size()}, raw.wide,
                          {&out.data[at], base.size()}, fmt::format("{} at row {}", where, r));
      continue;
    }
    for (size_t d = 0; d < base.size(); ++d) {
      const double v = raw.data[at + d] - base[d];
      out.data[at + d] = out.wide ? v : static_cast<double>(static_cast<float>(v));
    }
  }
  return out;
}

GrootValues groot_to_absolute(const GrootActionRule& rule, bool compose_poses,
                              const GrootValues& relative, const GrootValues& state,
                              const std::string& where) {
  const std::span<const double> base = last_row(relative, state, where);
  GrootValues out = relative;
  out.wide = true;
  for (int64_t r = 0; r < relative.rows; ++r) {
    const auto at = static_cast<size_t>(r * relative.width);
    if (rule.pose && compose_poses) {
      groot_absolute_pose(base, state.wide, {&relative.data[at], base.size()}, relative.wide,
                          {&out.data[at], base.size()}, fmt::format("{} at row {}", where, r));
      continue;
    }
    for (size_t d = 0; d < base.size(); ++d) out.data[at + d] += base[d];
  }
  return out;
}

}  // namespace longship::models
