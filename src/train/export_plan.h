#pragma once
// From a policy and its training state to the tensors of the public checkpoint.

#include <vector>

#include "models/spec.h"
#include "train/checkpoint_state.h"
#include "train/optimizer.h"

namespace longship::train {

/// The tensors of the public checkpoint, with their source in the state where training changes
/// them: the moving average when there is one, else the masters. They are cast to the dtype that
/// the file had which the weights came from (Policy::stored_weights()), else to the parameters'. Of
/// that file frozen parameters are given back bit for bit, as are tensors that the model does not
/// have, and what it leaves out stays out. The optimizer may update parts of the parameters.
/// `whole`: whether the policy holds its parameters; where it does not, frozen ones are
/// "param.<name>" of the state. Throws InternalError for a family that derives an exported tensor
/// from several parameters where no process holds these.
std::vector<ExportTensor> export_plan(models::Policy& policy, const AdamW& optimizer,
                                      bool whole = true);

}  // namespace longship::train
