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
  int64_t collectors = 0;
  const GradientPlaces* owner = nullptr;
  std::map<const void*, Offer> by_address;  // of the parameter
};

Offers& offers() {
  static Offers all;
  return all;
}

}  // namespace

GradientPlaces::GradientPlaces() {
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  ++all.collectors;
}

GradientPlaces::~GradientPlaces() {
  withdraw();
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  --all.collectors;
}

void GradientPlaces::offer(const std::vector<GradientPlace>& places) {
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  all.owner = this;
  all.by_address.clear();
  for (const auto& [param, place] : places) {
    LS_CHECK(param.is_contiguous() && place.is_contiguous() && param.sizes() == place.sizes() &&
                 param.scalar_type() == place.scalar_type() && param.device() == place.device(),
             InternalError, "a place of {} elements ({}) for a gradient of {} ({})", place.numel(),
             c10::toString(place.scalar_type()), param.numel(), c10::toString(param.scalar_type()));
    all.by_address.insert_or_assign(param.const_data_ptr(), Offer{place});
  }
}

void GradientPlaces::withdraw() {
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  if (all.owner != this) return;
  all.owner = nullptr;
  all.by_address.clear();
}

bool gradient_places_are_used() {
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  return all.collectors > 0;
}

at::Tensor take_gradient_place(const at::Tensor& weight) {
  if (!weight.has_storage() || weight.is_meta() || !weight.is_contiguous()) return {};
  Offers& all = offers();
  const std::lock_guard lock(all.mutex);
  const char* param = static_cast<const char*>(weight.const_data_ptr());
  const char* const end = param + weight.nbytes();
  std::vector<Offer*> found;
  while (param < end) {
    const auto at = all.by_address.find(param);
    if (at == all.by_address.end()) return {};
    Offer& offer = at->second;
    if (offer.taken || offer.place.scalar_type() != weight.scalar_type()) return {};
    if (!found.empty()) {
      const at::Tensor& before = found.back()->place;
      const char* behind = static_cast<const char*>(before.const_data_ptr()) + before.nbytes();
      if (offer.place.const_data_ptr() != behind ||
          !offer.place.storage().is_alias_of(before.storage())) {
        return {};
      }
    }
    found.push_back(&offer);
    param += offer.place.nbytes();
  }
  if (param != end) return {};
  for (Offer* offer : found) offer->taken = true;
  return found.front()->place.as_strided(weight.sizes(), weight.strides());
}

}  // namespace longship::ops
