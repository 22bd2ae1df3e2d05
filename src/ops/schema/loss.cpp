// Schemas of the loss operators.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def("flow_mix(Tensor actions, Tensor noise, Tensor time) -> Tensor");
  m.def(
      "flow_loss(Tensor v, Tensor actions, Tensor noise, int dims, Tensor? is_pad)"
      " -> (Tensor loss, Tensor loss_all, Tensor count)");
  m.def(
      "flow_loss_backward(Tensor dloss, Tensor v, Tensor actions, Tensor noise, int dims,"
      " Tensor? is_pad, Tensor count) -> Tensor");
}
