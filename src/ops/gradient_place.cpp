#include "ops/gradient_place.h"

#include <map>
#include <mutex>

#include "base/error.h"

namespace longship::ops {
namespace {

struct Offer {
  at::Tensor place;
  bool taken = false;
};

struct Offers {
  std::mutex mutex;  // backward passes run on threads of autograd
  const void* owner = nullptr;
  std::map<const void*, Offer> by_address;  // of the parameter
};

Offers& offers() {
  static Offers all;
  return all;
}

}  // namespace

void offer_gradient_places(const void* owner, const std::vector<GradientPlace>& places) {
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  all.owner = owner;
  all.by_address.clear();
  for (const auto& [param, place] : places) {
    LS_CHECK(param.is_contiguous() && place.is_contiguous() && param.sizes() == place.sizes() &&
                 param.scalar_type() == place.scalar_type() && param.device() == place.device(),
             InternalError, "a place of {} elements ({}) for a gradient of {} ({})", place.numel(),
             c10::toString(place.scalar_type()), param.numel(), c10::toString(param.scalar_type()));
    all.by_address.insert_or_assign(param.const_data_ptr(), Offer{place});
  }
}

void withdraw_gradient_places(const void* owner) {
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  if (all.owner != owner) return;
  all.owner = nullptr;
  all.by_address.clear();
}

bool has_gradient_place(const at::Tensor& weight) {
  if (!weight.has_storage() || weight.is_meta()) return false;
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  return all.by_address.contains(weight.const_data_ptr());
}

at::Tensor take_gradient_place(const at::Tensor& weight) {
  if (!weight.has_storage() || weight.is_meta() || !weight.is_contiguous()) return {};
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  const char* param = static_cast<const char*>(weight.const_data_ptr());
  const char* const end = param + weight.nbytes();
  const char* next = nullptr;  // where the following place has to be
  std::vector<Offer*> found;
  while (param < end) {
    const auto at = all.by_address.find(param);
    if (at == all.by_address.end()) return {};
    Offer& offer = at->second;
    const char* place = static_cast<const char*>(offer.place.const_data_ptr());
    if (offer.taken || (next != nullptr && place != next) ||
        offer.place.scalar_type() != weight.scalar_type()) {
      return {};
    }
    found.push_back(&offer);
    param += offer.place.nbytes();
    next = place + offer.place.nbytes();
  }
  if (param != end) return {};
  for (Offer* offer : found) offer->taken = true;
  return found.front()->place.as_strided(weight.sizes(), weight.strides());
}

}  // namespace longship::ops
