#include "dist/peer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace longship::dist {
namespace {

using ::testing::ElementsAre;

TEST(PeerPlan, PartsOfAnAllReduceCoverTheTensor) {
  for (int64_t world = 2; world <= 8; ++world) {
    for (const int64_t numel : {1, 63, 64, 65, 1000, 65536, 100003, 12345677}) {
      int64_t next = 0;
      for (int64_t r = 0; r < world; ++r) {
        const ElementRange part = all_reduce_part(numel, world, r);
        EXPECT_EQ(part.begin, next);
        EXPECT_TRUE(part.begin % kPeerAlign == 0 || part.count() == 0);
        next = part.end;
      }
      EXPECT_EQ(next, numel) << world;
    }
  }
  EXPECT_EQ(even_part(12, 3, 1).begin, 4);
  EXPECT_EQ(even_part(12, 3, 1).end, 8);
}

TEST(PeerPlan, NoTwoRanksReadFromTheSameAtATime) {
  EXPECT_THAT(peer_order(4, 2), ElementsAre(3, 0, 1));
  for (int64_t world = 2; world <= 8; ++world) {
    for (int64_t turn = 0; turn + 1 < world; ++turn) {
      std::set<int64_t> read;
      for (int64_t r = 0; r < world; ++r) {
        read.insert(peer_order(world, r)[static_cast<size_t>(turn)]);
      }
      EXPECT_EQ(static_cast<int64_t>(read.size()), world);
    }
  }
}

TEST(PeerPlan, StagedPiecesDoNotOverlap) {
  for (int64_t world = 2; world <= 8; ++world) {
    const Staging staging{world, 1 << 20};
    EXPECT_EQ(staging.piece_bytes() % 256, 0);
    for (int64_t rank = 0; rank < world; ++rank) {
      std::set<int64_t> places;
      for (int64_t slot = 0; slot < 2; ++slot) {
        for (const int64_t peer : peer_order(world, rank)) {
          const int64_t at = staging.offset(slot, rank, peer);
          EXPECT_EQ(at % staging.piece_bytes(), 0);
          EXPECT_LE(at + staging.piece_bytes(), staging.bytes);
          places.insert(at);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(places.size()), 2 * (world - 1));
    }
  }
}

TEST(PeerPlan, PiecesCoverThePartAndTakeTurns) {
  const Staging staging{2, 64 << 20};
  for (const int64_t element : {2, 4}) {
    for (const int64_t begin : {0, 64, 12345}) {
      for (const int64_t count : {1, 65, 1 << 20, 3276800, 100000003}) {
        int64_t next = begin, slot = 0;
        const auto pieces = plan_pieces({begin, begin + count}, element, staging);
        for (const PeerPiece& piece : pieces) {
          EXPECT_EQ(piece.range.begin, next);
          EXPECT_GT(piece.range.count(), 0);
          EXPECT_LE(piece.range.count() * element, staging.piece_bytes());
          EXPECT_EQ(piece.slot, slot);
          next = piece.range.end;
          slot = 1 - slot;
        }
        EXPECT_EQ(next, begin + count);
        EXPECT_EQ(pieces.size() == 1, count * element <= kLeastPiece);
      }
    }
  }
  EXPECT_TRUE(plan_pieces({64, 64}, 4, staging).empty());
  EXPECT_THROW(plan_pieces({0, 64}, 4, Staging{8, 256}), InternalError);
}

// What the transport does with the plan, on the host: every rank adds up its part from copies of
// the others', then copies theirs.
TEST(PeerPlan, AnAllReduceByThePlanAddsUp) {
  for (const int64_t world : {2, 3, 5, 8}) {
    const Staging staging{world, 2 * (world - 1) * 512};
    for (const int64_t numel : {5, 64, 1000, 4099}) {
      std::vector<std::vector<float>> tensors(static_cast<size_t>(world));
      std::vector<float> expected(static_cast<size_t>(numel), 0);
      for (int64_t r = 0; r < world; ++r) {
        for (int64_t i = 0; i < numel; ++i) {
          tensors[static_cast<size_t>(r)].push_back(static_cast<float>(i % 97 + 3 * r));
          expected[static_cast<size_t>(i)] += static_cast<float>(i % 97 + 3 * r);
        }
      }
      for (int64_t r = 0; r < world; ++r) {
        std::vector<float> memory(static_cast<size_t>(staging.bytes) / 4);
        std::vector<float>& own = tensors[static_cast<size_t>(r)];
        for (const PeerPiece& piece : plan_pieces(all_reduce_part(numel, world, r), 4, staging)) {
          for (const int64_t peer : peer_order(world, r)) {
            const int64_t at = staging.offset(piece.slot, r, peer) / 4;
            for (int64_t i = 0; i < piece.range.count(); ++i) {
              memory.at(static_cast<size_t>(at + i)) =
                  tensors[static_cast<size_t>(peer)].at(static_cast<size_t>(piece.range.begin + i));
            }
          }
          for (int64_t i = 0; i < piece.range.count(); ++i) {
            for (const int64_t peer : peer_order(world, r)) {
              own.at(static_cast<size_t>(piece.range.begin + i)) +=
                  memory.at(static_cast<size_t>(staging.offset(piece.slot, r, peer) / 4 + i));
            }
          }
        }
      }
      for (int64_t r = 0; r < world; ++r) {
        for (const int64_t peer : peer_order(world, r)) {
          const ElementRange part = all_reduce_part(numel, world, peer);
          for (int64_t i = part.begin; i < part.end; ++i) {
            tensors[static_cast<size_t>(r)][static_cast<size_t>(i)] =
                tensors[static_cast<size_t>(peer)][static_cast<size_t>(i)];
          }
        }
        EXPECT_EQ(tensors[static_cast<size_t>(r)], expected) << world << " " << numel;
      }
    }
  }
}

}  // namespace
}  // namespace longship::dist
