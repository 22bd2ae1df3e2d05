# Arrow and Parquet C++ out of the pyarrow wheel (no distribution package in Debian 12). Target: arrow_wheel.
# The wheel has libraries under their full soname only, so they are linked by path.
file(GLOB _arrow_dirs "${LS_VENV}/lib/python3*/site-packages/pyarrow")
if(_arrow_dirs)
  list(GET _arrow_dirs 0 LS_ARROW_DIR)
  file(GLOB LS_ARROW_LIB "${LS_ARROW_DIR}/libarrow.so.*")
  file(GLOB LS_PARQUET_LIB "${LS_ARROW_DIR}/libparquet.so.*")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ArrowWheel REQUIRED_VARS LS_ARROW_DIR LS_ARROW_LIB LS_PARQUET_LIB
  REASON_FAILURE_MESSAGE "no pyarrow in ${LS_VENV}: run scripts/build.sh")
if(ArrowWheel_FOUND AND NOT TARGET arrow_wheel)
  add_library(arrow_wheel INTERFACE)
  target_include_directories(arrow_wheel SYSTEM INTERFACE "${LS_ARROW_DIR}/include")
  target_link_libraries(arrow_wheel INTERFACE ${LS_PARQUET_LIB} ${LS_ARROW_LIB})
  target_link_options(arrow_wheel INTERFACE "-Wl,-rpath,${LS_ARROW_DIR}")
endif()
