#include "data/lerobot/info.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/strings.h"
#include "data/lerobot/json_text.h"

namespace longship::data::lerobot {

namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kPlace = "meta/info.json";
constexpr int64_t kMaxWidth = int64_t{1} << 24;

const Json* member(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool find_info(const std::filesystem::path& root, Findings& findings) {
  std::error_code code;
  const std::filesystem::path path = root / "meta/info.json";
  if (std::filesystem::is_regular_file(path, code)) return true;
  const bool is_folder = std::filesystem::is_directory(root, code);
  findings.error("missing-file", path.string(),
                 !is_folder ? fmt::format("there is no readable folder {}", root.string())
                            : "the file is missing or cannot be read",
                 "a LeRobot dataset has meta/info.json at its root",
                 "check the path of the dataset and its permissions, or download it again");
  return false;
}

bool read_version(const Json& json, Info& info, Findings& findings) {
  const Json* value = member(json, "codebase_version");
  info.version_text = value != nullptr && value->is_string() ? value->get<std::string>() : "";
  if (info.version_text == "v3.0") {
    info.version = Version::kV30;
  } else if (info.version_text == "v2.1") {
    info.version = Version::kV21;
  } else if (info.version_text == "v2.0") {
    info.version = Version::kV20;
  } else {
    findings.error("unsupported-version", kPlace,
                   value == nullptr
                       ? "codebase_version is absent"
                       : fmt::format("codebase_version is {}", printable(value->dump())),
                   "v2.0, v2.1 and v3.0 are supported",
                   "convert the dataset with LeRobot's conversion script");
    return false;
  }
  return true;
}

// fps is never guessed: a default plays the data at a wrong speed without a word.
void read_fps(const Json& json, Info& info, Findings& findings) {
  const std::string cure = "write the true frame rate of the recording";
  const Json* value = member(json, "fps");
  if (value == nullptr) {
    findings.error("fps", kPlace, "fps is absent", "a positive number", cure);
    return;
  }
  double fps = 0;
  try {
    fps = json_number(*value, "fps");
  } catch (const Error& error) {
    const std::string text = value->is_string() ? value->get<std::string>() : "";
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), fps);
    if (text.empty() || code != std::errc{} || end != text.data() + text.size()) {
      findings.error("fps", kPlace, error.what(), "a positive number", cure);
      return;
    }
    findings.warn("fps", kPlace, fmt::format("fps is the string \"{}\", read as {}", text, fps),
                  "a number", "remove the quotation marks");
  }
  if (!std::isfinite(fps) || fps <= 0 || fps > 1e6) {
    findings.error("fps", kPlace, fmt::format("fps is {}", fps), "a positive number", cure);
    return;
  }
  info.fps = fps;
}

void append_names(const Json& value, std::vector<std::string>& names) {
  if (value.is_string()) names.push_back(value.get<std::string>());
  if (value.is_array()) {
    for (const Json& item : value) append_names(item, names);
  }
  // {"motors": [...]}: one named axis with its names below.
  if (value.is_object() && value.size() == 1) append_names(*value.begin(), names);
}

bool is_true(const Json* value) {
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

CameraInfo camera_of(const Feature& feature, const Json& json) {
  CameraInfo camera;
  camera.name = feature.name;
  camera.is_video = feature.kind == FeatureKind::kVideo;
  for (const char* key : {"info", "video_info"}) {
    const Json* extra = member(json, key);
    if (extra == nullptr || !extra->is_object()) continue;
    camera.is_depth = camera.is_depth || is_true(member(*extra, "video.is_depth_map")) ||
                      is_true(member(*extra, "is_depth_map"));
  }
  if (feature.shape.size() != 3 && feature.shape.size() != 2) return camera;
  size_t height = 0, width = 1;
  const bool named = feature.dim_names.size() == feature.shape.size();
  if (named) {
    for (size_t i = 0; i < feature.shape.size(); ++i) {
      if (feature.dim_names[i] == "height") height = i;
      if (feature.dim_names[i] == "width") width = i;
    }
  } else if (feature.shape.size() == 3 && feature.shape[0] <= 4 && feature.shape[2] > 4) {
    height = 1;
    width = 2;
  }
  camera.height = feature.shape[height];
  camera.width = feature.shape[width];
  return camera;
}

Feature read_feature(const std::string& name, const Json& json) {
  Feature feature;
  feature.name = name;
  const std::string what = fmt::format("features.{}", name);
  LS_CHECK(json.is_object(), DataError, "{} is no object", what);
  const Json* dtype = member(json, "dtype");
  LS_CHECK(dtype != nullptr && dtype->is_string(), DataError, "{}.dtype is absent", what);
  feature.dtype = dtype->get<std::string>();
  feature.kind = feature.dtype == "video"    ? FeatureKind::kVideo
                 : feature.dtype == "image"  ? FeatureKind::kImage
                 : feature.dtype == "string" ? FeatureKind::kString
                                             : FeatureKind::kNumeric;
  if (const Json* shape = member(json, "shape")) {
    LS_CHECK(shape->is_array(), DataError, "{}.shape is no list", what);
    for (const Json& item : *shape) {
      const int64_t extent = json_integer(item, what + ".shape");
      LS_CHECK(extent >= 0 && extent <= kMaxWidth, DataError, "{}.shape has the extent {}", what,
               extent);
      feature.shape.push_back(extent);
      LS_CHECK(feature.width() <= kMaxWidth * 64, DataError, "{}.shape is too large", what);
    }
  }
  if (const Json* names = member(json, "names")) append_names(*names, feature.dim_names);
  return feature;
}

void read_features(const Json& json, Info& info, Findings& findings) {
  const Json* features = member(json, "features");
  if (features == nullptr || !features->is_object() || features->empty()) {
    findings.error("features", kPlace, "features is absent or empty",
                   "an object with dtype and shape per feature");
    return;
  }
  for (const auto& [name, value] : features->items()) {
    try {
      Feature feature = read_feature(name, value);
      if (feature.kind == FeatureKind::kNumeric && feature.width() == 0) {
        findings.info("zero-width-feature", name, "the feature has width 0 and is ignored");
        continue;
      }
      if (feature.kind == FeatureKind::kVideo || feature.kind == FeatureKind::kImage) {
        info.cameras.push_back(camera_of(feature, value));
      }
      info.features.push_back(std::move(feature));
    } catch (const Error& error) {
      findings.error("features", kPlace, error.what());
    }
  }
}

std::optional<int64_t> counter(const Json& json, const char* key, Findings& findings) {
  const Json* value = member(json, key);
  if (value == nullptr) return std::nullopt;
  try {
    return json_integer(*value, key);
  } catch (const Error& error) {
    findings.warn("counters", kPlace, error.what(), "the data are used");
    return std::nullopt;
  }
}

}  // namespace

std::optional<Info> read_info(const std::filesystem::path& root, Findings& findings) {
  if (!find_info(root, findings)) return std::nullopt;
  Info info;
  try {
    const Json json = read_json_object(root / "meta/info.json");
    if (!read_version(json, info, findings)) return std::nullopt;
    read_fps(json, info, findings);
    read_features(json, info, findings);
    info.total_episodes = counter(json, "total_episodes", findings);
    info.total_frames = counter(json, "total_frames", findings);
    if (const Json* size = member(json, "chunks_size")) {
      info.chunks_size = json_integer(*size, "chunks_size");
    }
    if (info.chunks_size < 1) {
      findings.error("chunks-size", kPlace, fmt::format("chunks_size is {}", info.chunks_size),
                     "1 or more");
      return std::nullopt;
    }
    for (const auto& [key, target] :
         {std::pair{"data_path", &info.data_path}, std::pair{"video_path", &info.video_path}}) {
      const Json* value = member(json, key);
      if (value != nullptr && value->is_string()) *target = value->get<std::string>();
    }
  } catch (const Error& error) {
    findings.error("json-syntax", kPlace, error.what());
    return std::nullopt;
  }
  bool has_video = false;
  for (const CameraInfo& camera : info.cameras) has_video = has_video || camera.is_video;
  if (info.data_path.empty()) {
    findings.error("path-template", kPlace, "data_path is absent", "a template like \"data/...\"");
  }
  if (info.video_path.empty() && has_video) {
    findings.error("path-template", kPlace, "video_path is absent, but there are video features",
                   "a template like \"videos/...\"");
  }
  if (info.data_path.empty() || (info.video_path.empty() && has_video)) return std::nullopt;
  return info;
}

std::string fill_template(std::string_view text,
                          const std::map<std::string, TemplateValue>& values) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{') {
      out += text[i];
      continue;
    }
    const size_t end = text.find('}', i);
    LS_CHECK(end != std::string_view::npos, DataError, "path template \"{}\" lacks a '}}'", text);
    const std::string_view field = text.substr(i + 1, end - i - 1);
    const size_t colon = field.find(':');
    const std::string name(field.substr(0, colon));
    const auto value = values.find(name);
    LS_CHECK(value != values.end(), DataError, "path template \"{}\" names the unknown field '{}'",
             text, name);
    int width = 0;
    if (colon != std::string_view::npos) {
      const std::string_view format = field.substr(colon + 1);
      const bool known = format.size() == 3 && format[0] == '0' && format[2] == 'd' &&
                         format[1] >= '1' && format[1] <= '9' &&
                         std::holds_alternative<int64_t>(value->second);
      LS_CHECK(known, DataError, "path template \"{}\" has the unknown format ':{}'", text, format);
      width = format[1] - '0';
    }
    if (const auto* number = std::get_if<int64_t>(&value->second)) {
      out += fmt::format("{:0{}d}", *number, width);
    } else {
      out += std::get<std::string>(value->second);
    }
    i = end;
  }
  for (const auto& part : std::filesystem::path(out)) {
    LS_CHECK(part != ".." && part != "/", DataError, "path \"{}\" leaves the dataset's folder",
             out);
  }
  return out;
}

}  // namespace longship::data::lerobot
