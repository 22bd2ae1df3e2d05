# LibTorch out of the PyPI wheel. TorchConfig.cmake of a CUDA wheel refuses to load where no toolkit is installed,
# so the libraries are linked directly. Target: torch_wheel. Result: TorchWheel_FOUND, LS_TORCH_DIR.
file(GLOB _torch_dirs "${LS_VENV}/lib/python3*/site-packages/torch")
if(_torch_dirs)
  list(GET _torch_dirs 0 LS_TORCH_DIR)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel REQUIRED_VARS LS_TORCH_DIR
  REASON_FAILURE_MESSAGE "no torch in ${LS_VENV}: run scripts/build.sh or: python3 -m venv .venv && .venv/bin/pip install torch==2.11.0")
if(TorchWheel_FOUND AND NOT TARGET torch_wheel)
  add_library(torch_wheel INTERFACE)
  # The wheel brings headers of its own fmt release but no library for them. Ours come first, from a folder that holds
  # nothing else, so that every file uses the one compiled fmt of the distribution (header-only fmt doubles compile times).
  get_target_property(_fmt_includes fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  list(GET _fmt_includes 0 _fmt_include)
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/distribution_headers")
  file(CREATE_LINK "${_fmt_include}/fmt" "${CMAKE_BINARY_DIR}/distribution_headers/fmt" SYMBOLIC)
  target_include_directories(torch_wheel SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/distribution_headers"
    "${LS_TORCH_DIR}/include" "${LS_TORCH_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(torch_wheel INTERFACE AT_PER_OPERATOR_HEADERS _GLIBCXX_USE_CXX11_ABI=1)
  target_link_libraries(torch_wheel INTERFACE "${LS_TORCH_DIR}/lib/libtorch_cpu.so" "${LS_TORCH_DIR}/lib/libc10.so")
  target_link_options(torch_wheel INTERFACE "-Wl,-rpath,${LS_TORCH_DIR}/lib")
  if(LS_CUDA)
    # Only the few files that speak to CUDA see its headers; all others compile to the same objects in both flavours,
    # so one compiler cache serves both.
    add_library(torch_cuda_headers INTERFACE)
    target_include_directories(torch_cuda_headers SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_definitions(torch_cuda_headers INTERFACE LS_CUDA_ENABLED)
    # libtorch_cuda registers its kernels when it is loaded, so it must be linked although no symbol asks for it.
    target_link_libraries(torch_wheel INTERFACE "${LS_TORCH_DIR}/lib/libc10_cuda.so"
      -Wl,--no-as-needed "${LS_TORCH_DIR}/lib/libtorch_cuda.so" -Wl,--as-needed)
  endif()
endif()
