// Several frames of one file in one pass.
#include <algorithm>

#include "base/error.h"
#include "io/video_ffmpeg.h"

namespace longship::io {

/// What a pass wants and what it has delivered.
struct FrameDecoder::Pass {
  std::span<const int64_t> frames;  // rising
  const FrameSink& sink;
  std::vector<uint8_t> delivered;  // [frames]
  size_t num_requested = 0;        // frames[0 .. num_requested) have their packets sent
  size_t num_pending = 0;          // of these, not delivered yet
  size_t first_run = 0;            // pictures of earlier runs were decoded for somebody else

  Pass(std::span<const int64_t> wanted, const FrameSink& to)
      : frames(wanted), sink(to), delivered(wanted.size(), 0) {}
  void deliver(size_t position, const AVFrame& frame) {
    sink(position, frame);
    delivered[position] = 1;
    if (position < num_requested) --num_pending;
  }
};

/// Hands over what the codec has ready. 0 when it wants the next packet, AVERROR_EOF at the end of
/// a drained run, another error of the codec.
int FrameDecoder::receive_into(Pass& pass) {
  while (true) {
    const int result = avcodec_receive_frame(codec_.get(), frame_.get());
    if (result == AVERROR(EAGAIN)) return 0;
    if (result < 0) return result;
    const Output output = identify_output();
    if (output.frame < 0) continue;
    if (output.run + 1 == run_starts_.size()) last_output_ = output.frame;
    const auto found = std::lower_bound(pass.frames.begin(), pass.frames.end(), output.frame);
    if (found == pass.frames.end() || *found != output.frame) continue;
    const auto position = static_cast<size_t>(found - pass.frames.begin());
    // A picture shown before the key frame of its run may lack what it refers to, and decode() says
    // what is wrong with a damaged one.
    const bool is_whole =
        index_.start_of_frame[static_cast<size_t>(output.frame)] >= run_starts_[output.run];
    if (pass.delivered[position] != 0 || output.run < pass.first_run || !is_whole ||
        output_is_damaged()) {
      continue;
    }
    hold_output(output.frame);
    pass.deliver(position, *held_frame_);
  }
}

/// Makes the packets that the frame needs the next ones. False when the codec failed.
bool FrameDecoder::start_pass_at(Pass& pass, int64_t frame_idx) {
  const int32_t start = index_.start_of_frame[static_cast<size_t>(frame_idx)];
  if (can_continue_to(frame_idx) || chain(start)) return true;
  if (pass.num_pending > 0 && !drained_) {  // a flush would drop them
    if (drain() < 0 || receive_into(pass) != AVERROR_EOF) return false;
  }
  restart(start);
  pass.first_run = 0;
  return true;
}

/// Gets the pictures that the codec still holds. False when it failed or has passed them.
bool FrameDecoder::finish_pass(Pass& pass) {
  while (pass.num_pending > 0) {
    if (drained_ || last_output_ >= pass.frames.back()) return false;
    const int sent = jumps_in_a_row_ >= kJumpsToDrain ? drain() : send_next();
    if (sent < 0) return false;
    const int received = receive_into(pass);
    if (received < 0 && received != AVERROR_EOF) return false;
  }
  return true;
}

bool FrameDecoder::run_pass(Pass& pass) {
  pass.first_run = run_starts_.empty() ? 0 : run_starts_.size() - 1;
  for (size_t i = 0; i < pass.frames.size(); ++i) {
    const int64_t frame_idx = pass.frames[i];
    note_request(frame_idx);
    if (pass.delivered[i] == 0 && !start_pass_at(pass, frame_idx)) return false;
    pass.num_requested = i + 1;
    if (pass.delivered[i] != 0) continue;
    ++pass.num_pending;
    const int32_t last = index_.packet_of_frame[static_cast<size_t>(frame_idx)];
    while (next_packet_ <= last || (drained_ && pass.delivered[i] == 0)) {
      if (!drained_ && send_next() < 0) return false;
      const int received = receive_into(pass);
      if (received == AVERROR_EOF) break;
      if (received < 0) return false;
    }
  }
  return finish_pass(pass);
}

void FrameDecoder::decode_each(std::span<const int64_t> frames, const FrameSink& sink) {
  if (frames.empty()) return;
  for (size_t i = 0; i < frames.size(); ++i) {
    check_range(frames[i]);
    LS_CHECK(i == 0 || frames[i - 1] < frames[i], InternalError, "frames {} and {} do not rise",
             frames[i - 1], frames[i]);
  }
  reset_ffmpeg_log();
  Pass pass(frames, sink);
  const auto held = std::lower_bound(frames.begin(), frames.end(), held_);
  if (held != frames.end() && *held == held_) {
    pass.deliver(static_cast<size_t>(held - frames.begin()), *held_frame_);
  }
  if (!run_pass(pass)) abandon_run();
  // What did not come out is asked for alone: from other key frames, with an error that names it.
  for (size_t i = 0; i < frames.size(); ++i) {
    if (pass.delivered[i] == 0) sink(i, decode(frames[i]));
  }
}

}  // namespace longship::io
