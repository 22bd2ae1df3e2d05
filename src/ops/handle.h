#pragma once
// Typed handles of our operators. Look up once and keep: static const auto op = typed_op<...>(...).

#include <ATen/core/dispatch/Dispatcher.h>

namespace longship::ops {

/// `name` with its namespace, e.g. "longship::geglu"; Signature exactly that of the
/// implementations.
template <class Signature>
c10::TypedOperatorHandle<Signature> typed_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace longship::ops
