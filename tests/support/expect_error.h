#pragma once
// Checks on error messages: a user reads them, so what they name is part of the contract.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace longship::testing {

/// The message of the ErrorType that `action` throws; a failure of the test when it throws nothing
/// or something else.
template <class ErrorType, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const ErrorType& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no exception";
  return {};
}

template <class ErrorType, class Action>
void expect_error(Action&& action, std::initializer_list<std::string_view> mentions) {
  const std::string message = message_of<ErrorType>(action);
  for (std::string_view text : mentions)
    EXPECT_THAT(message, ::testing::HasSubstr(std::string(text)));
}

}  // namespace longship::testing
