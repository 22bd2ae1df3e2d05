"""Writes a LeRobot v3.0 dataset of many frames, for measuring how it opens. Usage:
make_index_set.py FOLDER FRAMES EPISODES [--clip FILE FRAMES_OF_IT]

State and action of 7 numbers, several data files, no pictures; with --clip one camera, whose video
files are links to the clip and hold whole episodes.
"""
import argparse
import array
import itertools
import json
import pathlib
import random

import pyarrow as pa
import pyarrow.parquet as pq

WIDTH = 7
ROWS_PER_FILE = 250_000
FPS = 10


def numbers(code, values):
    """A column from plain numbers; pyarrow's conversion of lists is slow. code: 'f' or 'q'."""
    data = array.array(code, values)
    return pa.Array.from_buffers(pa.float32() if code == "f" else pa.int64(), len(data), [None, pa.py_buffer(data)])


def write_rows(root, lengths):
    starts = [0, *itertools.accumulate(lengths)]
    files, begin = [], 0  # (first episode, end) of each data file
    while begin < len(lengths):
        end = begin
        while end < len(lengths) and (end == begin or starts[end + 1] - starts[begin] <= ROWS_PER_FILE):
            end += 1
        files.append((begin, end))
        begin = end
    noise = random.Random(0)
    block = array.array("f", (noise.gauss(0, 1) for _ in range(100_003)))
    for number, (begin, end) in enumerate(files):
        rows = starts[end] - starts[begin]
        values = (block * (rows * WIDTH // len(block) + 1))[: rows * WIDTH]
        state = pa.FixedSizeListArray.from_arrays(numbers("f", values), WIDTH)
        frames = [k for length in lengths[begin:end] for k in range(length)]
        table = pa.table({
            "observation.state": state, "action": state,
            "timestamp": numbers("f", (k / FPS for k in frames)), "frame_index": numbers("q", frames),
            "episode_index": numbers("q", (e for e in range(begin, end) for _ in range(lengths[e]))),
            "index": numbers("q", range(starts[begin], starts[end])),
            "task_index": numbers("q", itertools.repeat(0, rows))})
        path = root / f"data/chunk-000/file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="snappy")
    return files, starts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("frames", type=int)
    parser.add_argument("episodes", type=int)
    parser.add_argument("--clip", nargs=2)
    args = parser.parse_args()
    root = args.root
    lengths = [args.frames // args.episodes + (e < args.frames % args.episodes) for e in range(args.episodes)]
    files, starts = write_rows(root, lengths)
    data_file = [number for number, (begin, end) in enumerate(files) for _ in range(begin, end)]
    n = args.episodes
    columns = {
        "episode_index": list(range(n)), "tasks": [["move"]] * n, "length": lengths,
        "dataset_from_index": starts[:-1], "dataset_to_index": starts[1:],
        "data/chunk_index": [0] * n, "data/file_index": data_file}
    features = {
        "observation.state": {"dtype": "float32", "shape": [WIDTH], "names": None},
        "action": {"dtype": "float32", "shape": [WIDTH], "names": None}}
    for name, dtype in [("timestamp", "float32"), ("frame_index", "int64"), ("episode_index", "int64"),
                        ("index", "int64"), ("task_index", "int64")]:
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    if args.clip:
        camera = "observation.images.top"
        longest = max(lengths)
        per_file = int(args.clip[1]) // longest
        begins = [e % per_file * longest / FPS for e in range(n)]
        columns |= {
            f"videos/{camera}/chunk_index": [0] * n,
            f"videos/{camera}/file_index": [e // per_file for e in range(n)],
            f"videos/{camera}/from_timestamp": begins,
            f"videos/{camera}/to_timestamp": [begin + length / FPS for begin, length in zip(begins, lengths)]}
        folder = root / f"videos/{camera}/chunk-000"
        folder.mkdir(parents=True)
        for number in range(-(-n // per_file)):
            (folder / f"file-{number:03d}.mp4").symlink_to(pathlib.Path(args.clip[0]).resolve())
        features[camera] = {"dtype": "video", "shape": [96, 96, 3], "names": ["height", "width", "channels"]}
    meta = root / "meta/episodes/chunk-000/file-000.parquet"
    meta.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), meta)
    pq.write_table(pa.table({"task_index": [0], "task": ["move"]}), root / "meta/tasks.parquet")
    info = {
        "codebase_version": "v3.0", "robot_type": "test", "total_episodes": n, "total_frames": starts[-1],
        "total_tasks": 1, "chunks_size": 1000, "fps": FPS, "splits": {"train": f"0:{n}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features}
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/stats.json").write_text("{}")


if __name__ == "__main__":
    main()
