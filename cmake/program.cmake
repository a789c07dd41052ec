# The program `thimble` (bench/main.cpp and the code it shares with the tests), the benchmarks (*_benchmark.cpp in
# bench/, one program each) and thimble_parity (bench/parity/), our half of the comparison with PyTorch.
find_package(CLI11 REQUIRED)
file(GLOB_RECURSE thimble_bench_sources CONFIGURE_DEPENDS bench/*.cpp)
set(thimble_benchmark_sources ${thimble_bench_sources})
list(FILTER thimble_benchmark_sources INCLUDE REGEX "_benchmark\\.cpp$")
list(FILTER thimble_bench_sources EXCLUDE REGEX "/bench/(parity|peers)/|/bench/main\\.cpp$|_benchmark\\.cpp$")

# A sanitizer build is about the library: it leaves out pages, flags and their tests.
set(thimble_program_parts "book|commands|experiments|report|live")
if(THIMBLE_SANITIZE AND NOT THIMBLE_PROGRAM)
  list(FILTER thimble_bench_sources EXCLUDE REGEX "/bench/(${thimble_program_parts})[/.]")
else()
  # The program embeds the style sheets and scripts of the pages.
  file(GLOB thimble_web_files CONFIGURE_DEPENDS bench/report/web/*)
  set(thimble_web ${PROJECT_BINARY_DIR}/web.cpp)
  add_custom_command(OUTPUT ${thimble_web} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DFOLDER=${PROJECT_SOURCE_DIR}/bench/report/web -DOUTPUT=${thimble_web}
            -P ${PROJECT_SOURCE_DIR}/cmake/embed_web.cmake
    DEPENDS ${thimble_web_files} cmake/embed_web.cmake)
  list(APPEND thimble_bench_sources ${thimble_web})
endif()

# Everything but main(), so that the tests can call it.
if(thimble_bench_sources)
  add_library(thimble_bench STATIC ${thimble_bench_sources})
  thimble_own_target(thimble_bench)
  # Flags, JSON and pages run for milliseconds and compile faster with -Os; the ceiling loops are built like kernels.
  target_compile_options(thimble_bench PRIVATE $<${thimble_optimizes}:-Os>)
  set_source_files_properties(bench/timing/ceiling.cpp PROPERTIES COMPILE_OPTIONS -O3)
  set_target_properties(thimble_bench PROPERTIES UNITY_BUILD ${THIMBLE_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  target_link_libraries(thimble_bench PUBLIC thimble::thimble CLI11::CLI11 nlohmann_json::nlohmann_json ZLIB::ZLIB)
else()
  add_library(thimble_bench INTERFACE)
endif()

if(THIMBLE_PROGRAM)
  if(EXISTS ${PROJECT_SOURCE_DIR}/bench/main.cpp)
    thimble_add_program(thimble_program bench/main.cpp)
    target_link_libraries(thimble_program PRIVATE thimble_bench)
    target_compile_options(thimble_program PRIVATE $<${thimble_optimizes}:-Os>) # parses flags
    set_target_properties(thimble_program PROPERTIES OUTPUT_NAME thimble)
    if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT THIMBLE_SANITIZE)
      # A process maps all of a shared library, but only the functions it calls of a static one.
      target_link_options(thimble_program PRIVATE -static-libstdc++ -static-libgcc)
    endif()
  endif()
  foreach(source IN LISTS thimble_benchmark_sources)
    get_filename_component(name ${source} NAME_WE)
    thimble_add_program(${name} ${source})
    target_link_libraries(${name} PRIVATE thimble_bench)
  endforeach()
  thimble_add_program(thimble_parity bench/parity/parity.cpp)
  target_link_libraries(thimble_parity PRIVATE CLI11::CLI11)
endif()
