# Helpers with which every layer, test and fuzz target is declared, so that flags live in one place.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")

find_program(LS_CCACHE ccache)
if(LS_CCACHE)
  # Settings that let precompiled headers be cached and make hits independent of the checkout's folder.
  set(_launcher "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" "CCACHE_NOHASHDIR=1" "${LS_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${_launcher}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${_launcher}")
endif()
find_program(LS_LLD ld.lld)
if(LS_LLD)
  add_link_options(-fuse-ld=lld)
endif()

add_library(longship_flags INTERFACE)
target_include_directories(longship_flags INTERFACE "${CMAKE_SOURCE_DIR}/src")
target_compile_options(longship_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Werror -Wno-unknown-pragmas -fopenmp-simd>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fpch-preprocess -Winvalid-pch>)
if(LS_SANITIZE)
  target_compile_options(longship_flags INTERFACE -fsanitize=${LS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(longship_flags INTERFACE -fsanitize=${LS_SANITIZE})
endif()

# longship_layer(NAME SOURCES a.cpp ... [DEPS longship::x ...] [PRIVATE_DEPS ...] [TORCH])
# One static library per layer. TORCH layers share one precompiled header of the light ATen headers.
function(longship_layer name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(longship_${name} STATIC ${arg_SOURCES})
  add_library(longship::${name} ALIAS longship_${name})
  target_link_libraries(longship_${name} PUBLIC longship_flags ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
  if(arg_TORCH)
    target_link_libraries(longship_${name} PUBLIC torch_wheel)
    target_precompile_headers(longship_${name} REUSE_FROM longship_pch_torch)
  endif()
endfunction()

# longship_test(NAME SOURCES a_test.cpp ... DEPS longship::x ... [TORCH])
# One test binary per layer; every TEST becomes a CTest entry. Tests find their files through LS_TEST_ROOT.
function(longship_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "SOURCES;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(longship_${name}_tests ${arg_SOURCES})
  # The shared precompiled header is made for -fPIC; programs would get -fPIE and GCC refuses the mixture.
  target_compile_options(longship_${name}_tests PRIVATE -fPIC)
  target_link_libraries(longship_${name}_tests PRIVATE ${arg_DEPS} longship_test_support GTest::gtest GTest::gmock
    GTest::gtest_main)
  if(arg_TORCH)
    target_sources(longship_${name}_tests PRIVATE "${CMAKE_SOURCE_DIR}/tests/support/torch_seed.cpp")
    target_precompile_headers(longship_${name}_tests REUSE_FROM longship_pch_test_torch)
  else()
    target_precompile_headers(longship_${name}_tests REUSE_FROM longship_pch_test)
  endif()
  # Suites whose names end in Gpu need a CUDA device and skip themselves without one: label gpu.
  gtest_discover_tests(longship_${name}_tests DISCOVERY_TIMEOUT 120 TEST_FILTER "-*Gpu.*:*Gpu/*"
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${name};${arg_LABELS}" ENVIRONMENT "OMP_NUM_THREADS=1;${arg_ENVIRONMENT}")
  gtest_discover_tests(longship_${name}_tests DISCOVERY_TIMEOUT 120 TEST_FILTER "*Gpu.*:*Gpu/*" TEST_LIST ${name}_gpu
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${name};gpu;${arg_LABELS}" ENVIRONMENT "OMP_NUM_THREADS=1;${arg_ENVIRONMENT}")
endfunction()
