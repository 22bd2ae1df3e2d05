#include "base/fs.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/config_support.h"
#include "base/sha256.h"
#include "base/version.h"
#include "support/paths.h"

namespace longship {
namespace {

namespace fs = std::filesystem;
using ::longship::testing::message_of;
using ::longship::testing::scratch_dir;
using ::testing::HasSubstr;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(AtomicFile, ReplacesAndLeavesNothingBehind) {
  const fs::path dir = scratch_dir("atomic_file");
  write_file_atomic(dir / "a", "one");
  write_file_atomic(dir / "a", std::string("t\0o", 3));
  EXPECT_EQ(read_file(dir / "a", 10), std::string("t\0o", 3));
  {
    AtomicFile dropped(dir / "a");
    dropped.write("half");
  }
  EXPECT_EQ(read_file(dir / "a", 10), std::string("t\0o", 3));
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"a"});
}

TEST(AtomicFile, ErrorsNamePathAndReason) {
  const fs::path dir = scratch_dir("atomic_errors");
  EXPECT_THAT(message_of([&] { write_file_atomic(dir / "none/a", "x"); }),
              ::testing::AllOf(HasSubstr((dir / "none/a").string()),
                               HasSubstr("No such file or directory")));
  write_file_atomic(dir / "file", "x");
  EXPECT_THAT(message_of([&] { write_file_atomic(dir / "file/a", "x"); }),
              HasSubstr("Not a directory"));
  fs::create_directories(dir / "folder");
  EXPECT_THAT(message_of([&] { write_file_atomic(dir / "folder", "x"); }),
              HasSubstr("Is a directory"));
  EXPECT_EQ(names_in(dir), (std::vector<std::string>{"file", "folder"}));
  EXPECT_THROW(write_file_atomic(dir / "none/a", "x", ExitCode::kCheckpoint), CheckpointError);
}

TEST(AtomicFile, TooLittleSpaceIsFoundBeforeWriting) {
  const fs::path dir = scratch_dir("no_space");
  EXPECT_THAT(
      message_of([&] { AtomicFile file(dir / "big", uint64_t{1} << 60, ExitCode::kCheckpoint); }),
      ::testing::AllOf(HasSubstr("it needs 1.0 EiB and only"), HasSubstr("are free there")));
  EXPECT_TRUE(names_in(dir).empty());
}

TEST(AtomicFile, AFailingWriteLeavesTheOldFile) {
  const fs::path dir = scratch_dir("failing_write");
  write_file_atomic(dir / "a", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    // A file size limit stands for a full disk: write() fails half way.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message =
        message_of([&] { write_file_atomic(dir / "a", std::string(100000, 'x')); });
    const bool good = message.find("File too large") != std::string::npos &&
                      message.find("after 4.0 KiB") != std::string::npos;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(dir / "a", 10), "old");
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"a"});
}

TEST(AtomicFile, UnwritableFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "the superuser may write everywhere";
  const fs::path dir = scratch_dir("unwritable");
  fs::permissions(dir, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(
      message_of([&] { write_file_atomic(dir / "a", "x"); }),
      ::testing::AllOf(HasSubstr("Permission denied"), HasSubstr("needs write permission")));
  fs::permissions(dir, fs::perms::owner_all);
}

TEST(AtomicFolder, AppearsAtCommitOnly) {
  const fs::path dir = scratch_dir("atomic_folder");
  {
    AtomicFolder folder(dir / "deep/step_1/");
    write_file_atomic(folder.path() / "x", "1");
    fs::create_directories(folder.path() / "state");
    write_file_atomic(folder.path() / "state/y", "2");
    EXPECT_FALSE(fs::exists(dir / "deep/step_1"));
    folder.commit();
  }
  EXPECT_EQ(read_file(dir / "deep/step_1/state/y", 10), "2");
  EXPECT_EQ(names_in(dir / "deep"), std::vector<std::string>{"step_1"});
  EXPECT_THAT(message_of([&] { AtomicFolder again(dir / "deep/step_1"); }),
              HasSubstr("it exists already"));
}

TEST(AtomicFolder, UncommittedOneVanishes) {
  const fs::path dir = scratch_dir("dropped_folder");
  {
    AtomicFolder folder(dir / "step_1");
    write_file_atomic(folder.path() / "x", "1");
  }
  EXPECT_TRUE(names_in(dir).empty());
}

TEST(AtomicFolder, AKillLeavesOnlyAPartialFolderThatCanBeCleared) {
  const fs::path dir = scratch_dir("killed");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFolder folder(dir / "step_2");
    write_file_atomic(folder.path() / "x", "1");
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(dir / "step_2"));
  AtomicFolder alive(dir / "step_3");
  write_file_atomic(dir / "notes.partial-x", "kept: no process number");
  EXPECT_EQ(remove_stale_partials(dir), 1);
  EXPECT_EQ(names_in(dir),
            (std::vector<std::string>{"notes.partial-x", alive.path().filename().string()}));
}

TEST(ReadFile, BoundsAndKinds) {
  const fs::path dir = scratch_dir("read_file");
  write_file_atomic(dir / "a", "12345");
  EXPECT_EQ(read_file(dir / "a", 5), "12345");
  EXPECT_THAT(message_of([&] { read_file(dir / "a", 4); }),
              HasSubstr("has 5 B, more than the 4 B allowed"));
  EXPECT_THAT(message_of([&] { read_file("/dev/null", 4); }), HasSubstr("no regular file"));
  EXPECT_THROW(read_file(dir / "none", 4, ExitCode::kData), DataError);
}

TEST(FreeBytes, AsksTheNearestExistingParent) {
  EXPECT_GT(free_bytes(scratch_dir("free") / "not/there/yet"), 0u);
}

// FIPS 180-4 examples, and the one of a million letters.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 pieces;
  const std::string million(1000000, 'a');
  for (size_t at = 0, n = 1; at < million.size(); at += n, n = n * 7 % 501 + 1) {
    n = std::min(n, million.size() - at);
    pieces.update(million.data() + at, n);
  }
  EXPECT_EQ(pieces.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, OfAFile) {
  const fs::path dir = scratch_dir("sha");
  write_file_atomic(dir / "a", "abc");
  EXPECT_EQ(sha256_file(dir / "a"), sha256_hex("abc"));
  EXPECT_THAT(message_of([&] { sha256_file(dir / "b"); }), HasSubstr("No such file"));
}

TEST(Version, NamesVersionAndBuild) {
  EXPECT_THAT(build_info(), ::testing::StartsWith("longship " + version()));
}

}  // namespace
}  // namespace longship
