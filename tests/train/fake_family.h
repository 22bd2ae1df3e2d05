#pragma once
// A small linear flow model and an artificial dataset: everything the trainer needs, without
// pictures.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "models/spec.h"
#include "train/recipe.h"

namespace longship::train::testing {

/// Episodes of given lengths; state and action have two dimensions, action(t) = state(t + 1) in
/// smooth curves.
std::shared_ptr<const data::Dataset> make_fake_dataset(std::vector<int64_t> lengths = {12, 9, 15,
                                                                                       11, 8});

/// Families by name: "fake", and nothing else.
const models::ModelFamily& fake_lookup(const std::string& name);
FamilyLookup fake_families();

/// Steps (draw key) at which the fake's loss is NaN; a negative entry -s makes a gradient infinite
/// at step s.
void set_bad_steps(std::vector<int64_t> steps);
/// The sample whose reading throws DataError; -1: none.
void set_unreadable_sample(int64_t sample_id);
/// Sleeps this long in every loss; for tests that interrupt.
void set_step_delay_ms(int64_t milliseconds);

/// A recipe over the fake family as YAML; `extra` lines are overrides "a.b=c".
Recipe fake_recipe(const std::string& output_dir, const std::vector<std::string>& overrides = {});

}  // namespace longship::train::testing
