# Included by the engine's own CMake project at its first project() call, so that its tree stays
# untouched. It only decides how things are compiled: a cold build on two cores would otherwise
# take longer than everything else together.
#
#   FAKEPREFIX_CORE_OPTIONS   of the library what the patch touches: memory, context, batches
#   FAKEPREFIX_MODEL_OPTIONS  the rest of it: 130 model files that only build graphs, vocabulary, loading
#   FAKEPREFIX_GLUE_OPTIONS   command line, chat templates, HTTP and JSON
#   FAKEPREFIX_TIMED_OPTIONS  what of these runs while a prompt is processed

function(fakeprefix_flags)
    # the model files spend their time parsing the same headers, so they are compiled a dozen at a
    # time; those with functions of their own, whose names may clash, are compiled alone
    get_target_property(sources llama SOURCES)
    get_target_property(source_dir llama SOURCE_DIR)
    foreach(source ${sources})
        # properties set from another directory are found by absolute names only
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${source_dir})
        set(alone TRUE)
        if(source MATCHES "models/[^/]+\\.cpp$")
            file(STRINGS ${source} own_functions REGEX "^static ")
            if(NOT own_functions)
                set(alone FALSE)
            endif()
        elseif(FAKEPREFIX_CORE_OPTIONS AND source MATCHES "/llama-(memory|kv|fake|batch|context|graph|io)[^/]*\\.cpp$")
            set_source_files_properties(${source} DIRECTORY ${source_dir} PROPERTIES COMPILE_OPTIONS "${FAKEPREFIX_CORE_OPTIONS}")
        endif()
        set_source_files_properties(${source} DIRECTORY ${source_dir} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ${alone})
    endforeach()
    set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    target_compile_options(llama PRIVATE ${FAKEPREFIX_MODEL_OPTIONS})

    # the JSON templates of these are most of the work, and are instantiated once for all of them.
    # nothing of it runs while a prompt is processed, except for the files that are compiled alone
    set(timed "^(sampling|common|log|reasoning-budget|speculative|server-context|server-queue)\\.cpp$")
    foreach(target llama-common server-context llama-server-impl)
        get_target_property(sources ${target} SOURCES)
        get_target_property(source_dir ${target} SOURCE_DIR)
        foreach(source ${sources})
            cmake_path(GET source FILENAME name)
            cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${source_dir})
            if(name MATCHES "${timed}")
                set_source_files_properties(${source} DIRECTORY ${source_dir} PROPERTIES COMPILE_OPTIONS "${FAKEPREFIX_TIMED_OPTIONS}")
            elseif(name STREQUAL "chat.cpp")
                # has a function that another file has too
                set_source_files_properties(${source} DIRECTORY ${source_dir} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
            endif()
        endforeach()
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
        target_compile_options(${target} PRIVATE ${FAKEPREFIX_GLUE_OPTIONS})
    endforeach()

    # triples the compile time, so it covers the memory and what computes, and no JSON code
    if(FAKEPREFIX_SANITIZE_UNDEFINED)
        foreach(target ggml-base ggml-cpu)
            target_compile_options(${target} PRIVATE -fsanitize=undefined)
        endforeach()
    endif()
endfunction()

cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL fakeprefix_flags)
