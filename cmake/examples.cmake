# One program per examples/*.cpp, also run as a test if tests are built.
file(GLOB example_sources CONFIGURE_DEPENDS examples/*.cpp)
set(example_dir ${PROJECT_BINARY_DIR}/examples)
file(MAKE_DIRECTORY ${example_dir})
foreach(source IN LISTS example_sources)
  get_filename_component(name ${source} NAME_WE)
  thimble_add_program(example_${name} ${source})
  set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${example_dir})
  # Training steps 11 to 150 run the same code as steps 1 to 10, and a sanitizer slows them fifty times. It also skips
  # the budget on four ranks (332 s), which tests of trainers and of ranks cover.
  set(steps "")
  if(THIMBLE_SANITIZE AND name MATCHES "^(mnist_resnet|train_gpt)$")
    set(steps 10)
  endif()
  if(THIMBLE_TESTS AND NOT (THIMBLE_SANITIZE AND name STREQUAL "own_model_on_ranks"))
    thimble_add_test(example.${name} COMMAND example_${name} ${steps} WORKING_DIRECTORY ${example_dir})
  endif()
endforeach()

# Ranks as processes, under the launcher of each MPI; skipped, not passed, if the MPI was not found.
if(THIMBLE_TESTS AND NOT THIMBLE_SANITIZE)
  foreach(name IN ITEMS openmpi mpich)
    string(TOUPPER ${name} upper)
    set(mpirun none)
    if(name IN_LIST thimble_mpi AND THIMBLE_${upper}_MPIRUN)
      add_dependencies(example_own_model_on_ranks thimble_${name})
      set(mpirun ${THIMBLE_${upper}_MPIRUN})
    endif()
    thimble_add_test(ranks.example.${name} COMMAND sh ${PROJECT_SOURCE_DIR}/tests/dist/mpi_example.sh "${mpirun}"
                                                   $<TARGET_FILE:example_own_model_on_ranks>)
    set_tests_properties(ranks.example.${name} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2)
    set_property(TEST ranks.example.${name} APPEND PROPERTY ENVIRONMENT THIMBLE_MODULES=${PROJECT_BINARY_DIR}/bin)
  endforeach()
endif()
