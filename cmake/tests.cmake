# The tests: tests/*_test.cpp in one program, one ctest entry per file, and tests/house, which checks the sources.
find_package(Catch2 REQUIRED)
set(THIMBLE_TEST_FILES "" CACHE STRING "Only the tests of files that match, as in `tape|segment`; empty: all")
option(THIMBLE_EMULATED_CUDA "Without CUDA, give the tests a CUDA device made of the host" ON)

# main() of the test programs: never under test, and optimizing it takes half a minute.
add_library(thimble_test_main STATIC tests/main.cpp)
thimble_own_target(thimble_test_main)
target_compile_features(thimble_test_main PUBLIC cxx_std_20)
target_compile_options(thimble_test_main PRIVATE -O0 -U_FORTIFY_SOURCE) # which needs optimization
target_include_directories(thimble_test_main PUBLIC tests)
target_link_libraries(thimble_test_main PUBLIC Catch2::Catch2)

# THIMBLE_DATA names the folder of data sets, by default one beside the project.
set(thimble_data "$ENV{THIMBLE_DATA}")
if(NOT thimble_data)
  get_filename_component(thimble_data ${PROJECT_SOURCE_DIR}/../shared/data ABSOLUTE)
endif()

# add_test with our common properties. ctest would drop an empty word and shift the words after it.
function(thimble_add_test name)
  math(EXPR last "${ARGC} - 1")
  foreach(i RANGE 1 ${last})
    if("${ARGV${i}}" STREQUAL "")
      message(FATAL_ERROR "thimble_add_test(${name}): argument ${i} is empty, expected a word")
    endif()
  endforeach()
  add_test(NAME ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
  if(EXISTS ${thimble_data})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT THIMBLE_DATA=${thimble_data})
  endif()
  if(TARGET thimble_program)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT THIMBLE_PROGRAM=$<TARGET_FILE:thimble_program>)
  endif()
endfunction()

# Adds the test `<prefix>.<topic>` for every <topic>_test.cpp of a Catch2 program, which tags every test with the name
# of its file; a tag that selects nothing fails. Leaves out hidden tests ([.x]) and, with a sanitizer, tests that would
# take minutes and run only code that others cover ([slow]).
function(thimble_add_catch_tests program prefix)
  set(tags "~[.]")
  if(THIMBLE_SANITIZE)
    string(APPEND tags "~[slow]")
  endif()
  foreach(source IN LISTS ARGN)
    get_filename_component(file ${source} NAME_WE)
    if(file MATCHES "^(.*)_test$")
      set(name ${prefix}.${CMAKE_MATCH_1})
      thimble_add_test(${name} COMMAND ${program} --filenames-as-tags "[#${file}]${tags}"
                       WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      # 77: all passed, but some skipped what the machine lacks (tests/support/skip.h).
      set_tests_properties(${name} PROPERTIES FAIL_REGULAR_EXPRESSION "No test cases matched;No tests ran"
                                              SKIP_RETURN_CODE 77)
    endif()
  endforeach()
endfunction()

# Sets `result` to sources that compile tests in batches of four: all headers of a batch come first, then each test in
# a namespace, where its includes do nothing. This takes a third less time than one by one. Tests with macros,
# with specializations or for a sanitizer remain by themselves.
function(thimble_batch_tests result)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN}) # a batch's headers are read from its tests
  set(batches "")
  set(tests "")
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} special REGEX
         "^(#(define|if|ifndef|undef)|template <>|namespace thimble |#include \"(support/sanitizer|(support/)?heap_watch|process_rows))")
    if(special)
      list(APPEND batches ${source})
    else()
      list(APPEND tests ${source})
    endif()
  endforeach()
  while(tests)
    list(SUBLIST tests 0 4 batch)
    list(REMOVE_ITEM tests ${batch})
    set(headers "")
    set(bodies "")
    foreach(source IN LISTS batch)
      file(RELATIVE_PATH source ${PROJECT_SOURCE_DIR}/tests ${source}) # found by -I, so that clones share objects
      get_filename_component(folder ${source} DIRECTORY)
      file(STRINGS tests/${source} includes REGEX "^#include [<\"]")
      foreach(include IN LISTS includes)
        string(REGEX REPLACE "^#include \"(.*)\"$" "\\1" name "${include}")
        if(EXISTS ${PROJECT_SOURCE_DIR}/tests/${folder}/${name})
          set(include "#include \"${folder}/${name}\"")
        endif()
        list(APPEND headers "${include}")
      endforeach()
      get_filename_component(name ${source} NAME_WE)
      string(APPEND bodies "namespace ${name} {\n#include \"${source}\"\n}\n")
    endforeach()
    list(REMOVE_DUPLICATES headers)
    list(JOIN headers "\n" headers)
    list(GET batch 0 first)
    get_filename_component(name ${first} NAME_WE)
    set(batch ${PROJECT_BINARY_DIR}/batches/${name}.cpp)
    file(CONFIGURE OUTPUT ${batch} CONTENT "${headers}\n${bodies}" @ONLY)
    list(APPEND batches ${batch})
  endwhile()
  set(${result} ${batches} PARENT_SCOPE)
endfunction()

# Without CUDA the test program emulates a CUDA device: it compiles the bodies of cuda/*.cu as C++. The linker then
# takes no cuda/none.cpp from a static library, since every symbol of it is already defined.
set(thimble_emulated_sources "")
set(thimble_emulates FALSE)
get_target_property(thimble_library_type thimble TYPE)
if(THIMBLE_EMULATED_CUDA AND NOT thimble_cuda AND thimble_library_type STREQUAL "STATIC_LIBRARY")
  set(thimble_emulates TRUE)
  file(GLOB_RECURSE thimble_emulated_kernels CONFIGURE_DEPENDS cuda/*.cu)
  foreach(source IN LISTS thimble_emulated_kernels)
    get_filename_component(name ${source} NAME_WE)
    set(wrapper ${PROJECT_BINARY_DIR}/emulated/${name}.cpp)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n")
    list(APPEND thimble_emulated_sources ${wrapper})
  endforeach()
  set(thimble_emulated_options -O1)
  if(THIMBLE_SANITIZE)
    list(APPEND thimble_emulated_options ${thimble_sanitizes})
    if(THIMBLE_SANITIZE MATCHES "undefined")
      list(APPEND thimble_emulated_options -fsanitize=alignment) # GPUs load only aligned words
    endif()
  endif()
  set_source_files_properties(${thimble_emulated_sources} PROPERTIES COMPILE_OPTIONS "${thimble_emulated_options}")
  if(THIMBLE_SANITIZE) # at -O0 these compile in 2/5 of the time; the others would run too long
    set(thimble_cold_kernels ${thimble_emulated_sources})
    list(FILTER thimble_cold_kernels EXCLUDE REGEX "/[^/]*(attention|conv|fp8|matmul|quant)[^/]*$")
    set_source_files_properties(${thimble_cold_kernels} PROPERTIES COMPILE_OPTIONS "${thimble_emulated_options};-O0")
  endif()
  list(APPEND thimble_emulated_sources tests/emulated/backing.cpp tests/emulated/device.cpp tests/emulated/driver.cpp)
  # cuda/runtime/backing.cpp is compiled over an emulated driver, whose headers replace CUDA's.
  set_source_files_properties(tests/emulated/driver.cpp PROPERTIES
                              COMPILE_OPTIONS -I${PROJECT_SOURCE_DIR}/tests/emulated/driver)
endif()

# The device functions that kernels compiled as C++ need; every access of shared memory goes through them.
list(APPEND thimble_emulated_sources tests/emulated/block.cpp tests/emulated/fiber.cpp)
set_source_files_properties(tests/emulated/block.cpp tests/emulated/fiber.cpp PROPERTIES
                            COMPILE_OPTIONS "${thimble_sanitizes};-O2")

file(GLOB_RECURSE thimble_test_sources CONFIGURE_DEPENDS tests/*_test.cpp)
list(FILTER thimble_test_sources EXCLUDE REGEX "/tests/(house|consumer|book|exercises|program/golden)/")
if(THIMBLE_TEST_FILES)
  list(FILTER thimble_test_sources INCLUDE REGEX "/(${THIMBLE_TEST_FILES})_test\\.cpp$")
endif()
# Tests that not every build has are in batches of their own, so that all builds share the others' objects: tests of the
# emulated device, and those that a sanitizer leaves out. The latter train for minutes and run only code that smaller
# tests cover, or call code that is not built there (cmake/program.cmake).
set(thimble_emulated_tests ${thimble_test_sources})
list(FILTER thimble_emulated_tests INCLUDE REGEX "/(driver_backing|emulated_[a-z]*)_test")
set(thimble_whole_tests ${thimble_test_sources})
list(FILTER thimble_whole_tests INCLUDE REGEX
     "/tests/(certificate|prototypes|models/(training|planning|generation))/|/(budget|choices|plan_and_run|program_offload|program_precision|quant_accuracy|quantizing)_test")
foreach(source IN LISTS thimble_test_sources)
  file(STRINGS ${source} includes REGEX "include <thimble/bench/(${thimble_program_parts})[/.]")
  if(includes)
    list(APPEND thimble_whole_tests ${source})
  endif()
endforeach()
list(REMOVE_DUPLICATES thimble_whole_tests)
list(REMOVE_ITEM thimble_test_sources ${thimble_emulated_tests} ${thimble_whole_tests})
if(NOT thimble_emulates)
  set(thimble_emulated_tests "")
endif()
if(THIMBLE_SANITIZE AND NOT THIMBLE_PROGRAM)
  set(thimble_whole_tests "")
endif()
if(THIMBLE_UNITY AND NOT THIMBLE_TEST_FILES)
  thimble_batch_tests(thimble_test_batches ${thimble_test_sources})
  thimble_batch_tests(thimble_emulated_batches ${thimble_emulated_tests})
  thimble_batch_tests(thimble_whole_batches ${thimble_whole_tests})
else()
  set(thimble_test_batches ${thimble_test_sources})
  set(thimble_emulated_batches ${thimble_emulated_tests})
  set(thimble_whole_batches ${thimble_whole_tests})
endif()
list(APPEND thimble_test_sources ${thimble_emulated_tests} ${thimble_whole_tests})
if(thimble_test_sources)
  thimble_add_program(thimble_tests tests/support/listener.cpp tests/support/operator_table.cpp tests/certificate/certificate.cpp
                      tests/certificate/certificate_nets.cpp tests/support/heap_watch.cpp tests/dist/rank_cases.cpp tests/kernels/references.cpp
                      ${thimble_emulated_sources} ${thimble_test_batches} ${thimble_emulated_batches} ${thimble_whole_batches})
  target_compile_options(thimble_tests PRIVATE $<$<CONFIG:Release>:-O1>) # halves build time; not the code under test
  if(THIMBLE_SANITIZE)
    # Tests are compiled without the sanitizer, which is for the code they call, unless they ask for it. The library's
    # objects come first, so that its copies of shared inline functions are linked.
    foreach(source IN LISTS thimble_test_sources ITEMS ${PROJECT_SOURCE_DIR}/tests/support/heap_watch.cpp)
      file(STRINGS ${source} thimble_includes REGEX "include \"(support/sanitizer|(support/)?heap_watch|process_rows)\\.h")
      if(thimble_includes)
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${thimble_sanitizes}" SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
    target_link_options(thimble_tests PRIVATE $<TARGET_OBJECTS:thimble_small>
                                              $<FILTER:$<TARGET_OBJECTS:thimble>,EXCLUDE,/none[.]cpp>)
  endif()
  target_link_libraries(thimble_tests PRIVATE thimble_test_main thimble_bench nlohmann_json::nlohmann_json ZLIB::ZLIB)
  if(THIMBLE_UNITY) # each test would spend a second on it
    target_precompile_headers(thimble_tests PRIVATE <support/catch.h>)
    set_source_files_properties(tests/support/listener.cpp ${thimble_emulated_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
  thimble_add_catch_tests(thimble_tests test ${thimble_test_sources})
endif()

# Ranks under the launcher of each MPI; skipped, not passed, if the MPI was not found.
thimble_add_program(thimble_mpi_ranks tests/dist/mpi_ranks.cpp tests/dist/rank_cases.cpp)
target_include_directories(thimble_mpi_ranks PRIVATE tests)
foreach(name IN ITEMS openmpi mpich)
  string(TOUPPER ${name} upper)
  set(mpirun none) # makes the scripts skip
  if(name IN_LIST thimble_mpi)
    add_dependencies(thimble_mpi_ranks thimble_${name})
    if(THIMBLE_${upper}_MPIRUN)
      set(mpirun ${THIMBLE_${upper}_MPIRUN})
    endif()
  endif()
  thimble_add_test(ranks.${name} COMMAND sh ${PROJECT_SOURCE_DIR}/tests/dist/mpi.sh "${mpirun}" $<TARGET_FILE:thimble_mpi_ranks>
                                         ${PROJECT_BINARY_DIR}/ranks_${name})
  set_tests_properties(ranks.${name} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2)
  if(TARGET thimble_program AND NOT THIMBLE_SANITIZE)
    thimble_add_test(ranks.train.${name} COMMAND sh ${PROJECT_SOURCE_DIR}/tests/dist/mpi_train.sh "${mpirun}"
                                                 $<TARGET_FILE:thimble_program> synthetic
                                                 ${PROJECT_BINARY_DIR}/ranks_train_${name})
    set_tests_properties(ranks.train.${name} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2)
  endif()
endforeach()

# Compares training with PyTorch; skipped, not passed, unless THIMBLE_PYTHON names a Python that has it.
if(TARGET thimble_parity)
  thimble_add_test(parity COMMAND sh ${PROJECT_SOURCE_DIR}/bench/parity/run.sh $<TARGET_FILE:thimble_parity>)
  thimble_add_test(parity_llama COMMAND sh ${PROJECT_SOURCE_DIR}/bench/parity/run.sh --llama $<TARGET_FILE:thimble_parity>)
  set_tests_properties(parity parity_llama PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2)
endif()

# Opens the program's pages in a headless browser; skipped, not passed, without one.
if(TARGET thimble_program AND NOT THIMBLE_SANITIZE)
  thimble_add_test(pages COMMAND sh ${PROJECT_SOURCE_DIR}/tests/pages/run.sh $<TARGET_FILE:thimble_program>
                                 ${PROJECT_BINARY_DIR}/pages)
  set_tests_properties(pages PROPERTIES SKIP_RETURN_CODE 77)
endif()

# Tests the scripts for GPU machines, on fake programs and on machine code kept in the tests.
foreach(name IN ITEMS gpu_first kernel_budgets)
  thimble_add_test(${name} COMMAND bash ${PROJECT_SOURCE_DIR}/tests/cuda/${name}_test.sh ${PROJECT_BINARY_DIR}/${name})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()

# Tests of the sources need nothing of the library, so they also run while it does not build.
add_executable(thimble_house_tests tests/house/sources.cpp tests/house/folders_test.cpp
                                   tests/house/layering_test.cpp tests/house/prose_test.cpp
                                   tests/house/text_test.cpp tests/house/weight_test.cpp)
thimble_own_target(thimble_house_tests)
target_link_libraries(thimble_house_tests PRIVATE thimble_test_main)
target_compile_definitions(thimble_house_tests PRIVATE THIMBLE_HOUSE_CXX="${CMAKE_CXX_COMPILER}"
                                                       THIMBLE_HOUSE_INCLUDE="${thimble_include_dir}"
                                                       THIMBLE_HOUSE_DIR="${PROJECT_BINARY_DIR}")
set_target_properties(thimble_house_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
thimble_add_test(house.mutants COMMAND bash ${PROJECT_SOURCE_DIR}/tests/mutants/run.sh -n)
thimble_add_catch_tests(thimble_house_tests house folders_test.cpp layering_test.cpp prose_test.cpp text_test.cpp
                       weight_test.cpp)

# Complete outputs of commands and of runs of the library (tests/program/golden).
if(TARGET thimble_program AND NOT THIMBLE_SANITIZE)
  thimble_add_program(thimble_golden_library tests/program/golden/library.cpp)
  target_include_directories(thimble_golden_library PRIVATE tests)
  target_compile_options(thimble_golden_library PRIVATE $<$<CONFIG:Release>:-O1>)
  thimble_add_program(thimble_golden_tests tests/support/listener.cpp tests/program/golden/golden_test.cpp)
  target_include_directories(thimble_golden_tests PRIVATE tests)
  target_link_libraries(thimble_golden_tests PRIVATE thimble_test_main nlohmann_json::nlohmann_json)
  add_dependencies(thimble_golden_tests thimble_program thimble_golden_library)
  foreach(name IN ITEMS plan train files refusals library masks)
    thimble_add_test(golden.${name} COMMAND thimble_golden_tests "golden: ${name}*" WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  endforeach()
endif()

# The book (docs/book): code, command output, pictures, words, and the answers to its exercises.
if(TARGET thimble_program AND THIMBLE_EXAMPLES AND NOT THIMBLE_SANITIZE)
  file(GLOB thimble_book_sources CONFIGURE_DEPENDS tests/book/*_test.cpp)
  add_executable(thimble_book_tests tests/house/sources.cpp tests/book/chapters.cpp ${thimble_book_sources})
  thimble_own_target(thimble_book_tests)
  target_include_directories(thimble_book_tests PRIVATE ${thimble_include_dir})
  target_link_libraries(thimble_book_tests PRIVATE thimble_test_main)
  set_target_properties(thimble_book_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  thimble_add_catch_tests(thimble_book_tests book ${thimble_book_sources})
  set_tests_properties(book.commands PROPERTIES COST 100) # the longest test begins first
  # The run of ./reproduce.sh after its build takes minutes.
  thimble_add_test(book.reproduce COMMAND thimble_program reproduce all --quick --out ${PROJECT_BINARY_DIR}/book_report
                   CONFIGURATIONS CI)
  file(GLOB thimble_exercise_sources CONFIGURE_DEPENDS tests/exercises/*_test.cpp)
  thimble_add_program(thimble_exercises ${thimble_exercise_sources})
  target_compile_options(thimble_exercises PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(thimble_exercises PRIVATE thimble_test_main)
  set_target_properties(thimble_exercises PROPERTIES UNITY_BUILD OFF)
  thimble_add_catch_tests(thimble_exercises exercise ${thimble_exercise_sources})
endif()

# Programs that use the library in every supported way, compiled within the test as a user would. Tests of the
# configuration CI run only with `ctest -C CI`.
if(NOT THIMBLE_SANITIZE)
  set(consumer_dir ${PROJECT_SOURCE_DIR}/tests/consumer)
  set(consumer_build ${PROJECT_BINARY_DIR}/consumer)
  set(second_cxx clang++)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(second_cxx g++)
  endif()
  find_program(THIMBLE_SECOND_CXX NAMES ${second_cxx} ${CMAKE_CXX_COMPILER} DOC "The compiler to try the library with, too")

  # thimble_add_single_header_test(name form compiler flag...)
  function(thimble_add_single_header_test name form compiler)
    thimble_add_test(consumer.${name}
      COMMAND sh ${consumer_dir}/single_header/run.sh ${form} ${compiler} ${PROJECT_BINARY_DIR}/single_header
              ${consumer_build}/${name} ${ARGN}
      CONFIGURATIONS CI)
    set_tests_properties(consumer.${name} PROPERTIES COST 90) # one compiler takes minutes, so they begin early
  endfunction()
  thimble_add_single_header_test(one_file one_file ${THIMBLE_SECOND_CXX} -O0 -DTHIMBLE_WITH_FILES)
  thimble_add_single_header_test(parts parts ${CMAKE_CXX_COMPILER} -O2)
  if(THIMBLE_INSTALL)
    thimble_add_test(consumer.installed COMMAND sh ${consumer_dir}/installed/run.sh ${CMAKE_COMMAND} ${CMAKE_GENERATOR}
                                                ${CMAKE_CXX_COMPILER} ${PROJECT_BINARY_DIR} ${consumer_build}/installed)
  endif()
endif()
