#include "base/ordered_prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace longship {
namespace {

// Uneven production times, so that items finish out of order.
void jitter(int64_t i) {
  std::this_thread::sleep_for(std::chrono::microseconds((i * 7919) % 300));
}

TEST(OrderedPrefetcher, OrderDoesNotDependOnWorkers) {
  for (const int64_t workers : {0, 1, 2, 3, 16}) {
    for (const int64_t capacity : {1, 2, 5, 64}) {
      OrderedPrefetcher<int64_t> prefetcher(
          workers, capacity,
          [](int64_t i) {
            jitter(i);
            return i * i;
          },
          10, 110);
      for (int64_t i = 10; i < 110; ++i) {
        EXPECT_EQ(prefetcher.position(), i);
        ASSERT_EQ(prefetcher.next(), i * i) << workers << " workers, capacity " << capacity;
      }
      EXPECT_TRUE(prefetcher.done());
      EXPECT_THROW(prefetcher.next(), InternalError);
    }
  }
}

TEST(OrderedPrefetcher, CarriesMoveOnlyItemsWithoutDefaultConstructor) {
  struct Item {
    explicit Item(int64_t v) : value(std::make_unique<int64_t>(v)) {}
    std::unique_ptr<int64_t> value;
  };
  OrderedPrefetcher<Item> prefetcher(
      3, 4, [](int64_t i) { return Item(i); }, 0, 20);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(*prefetcher.next().value, i);
}

TEST(OrderedPrefetcher, StaysWithinItsCapacity) {
  std::atomic<int64_t> started{0}, taken{0}, worst{0};
  OrderedPrefetcher<int64_t> prefetcher(
      8, 4,
      [&](int64_t i) {
        const int64_t ahead = ++started - taken.load();
        int64_t seen = worst.load();
        while (ahead > seen && !worst.compare_exchange_weak(seen, ahead)) {
        }
        jitter(i);
        return i;
      },
      0);
  for (int64_t i = 0; i < 200; ++i) {
    ASSERT_EQ(prefetcher.next(), i);
    ++taken;
  }
  // One more than the capacity: an item may start between the hand-over and the count above.
  EXPECT_LE(worst.load(), 5);
}

TEST(OrderedPrefetcher, CountersTellWhichSideIsSlower) {
  using std::chrono::milliseconds;
  {
    OrderedPrefetcher<int64_t> slow_consumer(
        2, 3, [](int64_t i) { return i; }, 0, 12);
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(slow_consumer.num_ready(), 3);
    for (int64_t i = 0; i < 9; ++i) {
      slow_consumer.next();
      std::this_thread::sleep_for(milliseconds(10));
    }
    const PrefetchCounters counters = slow_consumer.counters();
    EXPECT_EQ(counters.num_taken, 9);
    EXPECT_GT(counters.blocked_s, 0.06) << "workers waited for room";
    EXPECT_LT(counters.work_s, counters.blocked_s);
    EXPECT_GE(counters.ready_sum, 15) << "mostly full";
    EXPECT_LE(counters.ready_sum, 27);
  }
  OrderedPrefetcher<int64_t> slow_producer(
      2, 3,
      [](int64_t i) {
        std::this_thread::sleep_for(milliseconds(10));
        return i;
      },
      0, 8);
  for (int64_t i = 0; i < 8; ++i) slow_producer.next();
  const PrefetchCounters counters = slow_producer.counters();
  EXPECT_GE(counters.num_starved, 3);
  EXPECT_GT(counters.wait_s, 0.02);
  EXPECT_GT(counters.work_s, 0.07);
  EXPECT_EQ(slow_producer.num_ready(), 0);
  OrderedPrefetcher<int64_t> alone(
      0, 0, [](int64_t i) { return i; }, 0, 4);
  alone.next();
  EXPECT_EQ(alone.counters().num_taken, 1);
  EXPECT_EQ(alone.counters().ready_sum, 0);
}

TEST(OrderedPrefetcher, ExceptionsComeAtTheirItemAndTheRestGoesOn) {
  for (const int64_t workers : {0, 1, 4}) {
    OrderedPrefetcher<int64_t> prefetcher(
        workers, 6,
        [](int64_t i) {
          jitter(i);
          if (i % 10 == 3) throw std::runtime_error("item " + std::to_string(i));
          return i;
        },
        0, 50);
    for (int64_t i = 0; i < 50; ++i) {
      if (i % 10 != 3) {
        ASSERT_EQ(prefetcher.next(), i);
        continue;
      }
      try {
        prefetcher.next();
        FAIL() << "item " << i << " must throw";
      } catch (const std::runtime_error& e) {
        EXPECT_EQ(e.what(), "item " + std::to_string(i));
      }
    }
  }
}

TEST(OrderedPrefetcher, DestructionMidwayJoinsAndDropsEverything) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int64_t> alive{0};
    {
      struct Counted {
        explicit Counted(std::atomic<int64_t>& c) : counter(&c) { ++*counter; }
        Counted(Counted&& other) noexcept : counter(std::exchange(other.counter, nullptr)) {}
        ~Counted() {
          if (counter != nullptr) --*counter;
        }
        std::atomic<int64_t>* counter;
      };
      OrderedPrefetcher<std::unique_ptr<Counted>> prefetcher(
          6, 9,
          [&](int64_t i) {
            jitter(i);
            if (i == 5) throw std::runtime_error("dropped");
            return std::make_unique<Counted>(alive);
          },
          0);
      for (int64_t i = 0; i < round % 5; ++i) prefetcher.next();
    }
    EXPECT_EQ(alive.load(), 0);
  }
}

TEST(OrderedPrefetcher, MeasuresTheWait) {
  OrderedPrefetcher<int> slow(
      1, 1,
      [](int64_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return 0;
      },
      0, 2);
  slow.next();
  EXPECT_GT(slow.wait_ms(), 5);
  OrderedPrefetcher<int> in_caller(
      0, 0,
      [](int64_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return 0;
      },
      0, 1);
  in_caller.next();
  EXPECT_GE(in_caller.wait_ms(), 9);
}

TEST(OrderedPrefetcher, RefusesBadArguments) {
  const auto make = [](int64_t workers, int64_t capacity, int64_t begin, int64_t end) {
    OrderedPrefetcher<int> p(
        workers, capacity, [](int64_t) { return 0; }, begin, end);
  };
  EXPECT_THROW(make(-1, 1, 0, 1), InternalError);
  EXPECT_THROW(make(1, 0, 0, 1), InternalError);
  EXPECT_THROW(make(1, 1, 2, 1), InternalError);
  EXPECT_NO_THROW(make(4, 4, 5, 5));
}

}  // namespace
}  // namespace longship
